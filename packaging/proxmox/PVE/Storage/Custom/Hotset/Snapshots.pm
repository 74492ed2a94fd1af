# SPDX-License-Identifier: Apache-2.0
#
# Snapshots and linked clones of disks on a pool: the part of the storage plug-in's methods that image
# files in a directory do not have. The plug-in inherits them.
package PVE::Storage::Custom::Hotset::Snapshots;

use strict;
use warnings;

use Exporter qw(import);
use JSON;

use PVE::Storage::Custom::Hotset::Daemon
    qw(ask find_volume get_volume is_ours place pool_name pool_volumes serve);

our @EXPORT_OK = qw(base_name delete_pool_volume refuse);

# Seconds for which a roll back waits until the daemon has noticed the end of the VM's QEMU.
use constant DISCONNECT_TIMEOUT => 10;
# Snapshot of a base image, of which linked clones are made. No snapshot of a VM has such a name.
use constant BASE_SNAPSHOT => '__base__';

sub refuse {
    my ($what) = @_;
    die "hotset does not do $what; move the disk to a storage that does\n";
}

# Returns the name of a disk of a pool. Images in a directory have no snapshots.
sub pool_disk {
    my ($class, $scfg, $volname, $what) = @_;

    refuse("$what of image files, but of volumes on pools") if !defined(pool_name($scfg));
    return ($class->parse_volname($volname))[1];
}

# Snapshots. The daemon makes, deletes and rolls back each in one step, so a second call has nothing to clean up.

sub snapshot_path {
    my ($name, $snapshot) = @_;

    my ($checked) = $snapshot =~ m/^([A-Za-z0-9_+-][A-Za-z0-9_.+-]*)\z/ or die "'$snapshot' is no snapshot's name\n";
    return "/api/v1/volumes/$name/snapshots/$checked";
}

# The snapshots of a disk by name. Its volume need not be served.
sub snapshots_of {
    my ($scfg, $storeid, $name) = @_;

    my $report = ask($scfg, $storeid, 'GET', "/api/v1/volumes/$name/snapshots");
    die "volume '$name' lies in pool $report->{pool}, which is not " . place($scfg) . "\n"
        if $report->{pool} ne pool_name($scfg);
    return { map { $_->{name} => $_ } $report->{snapshots}->@* };
}

sub get_snapshot {
    my ($scfg, $storeid, $name, $snapshot) = @_;
    return snapshots_of($scfg, $storeid, $name)->{$snapshot} // die "volume '$name' has no snapshot '$snapshot'\n";
}

sub create_snapshot {
    my ($scfg, $storeid, $name, $snapshot) = @_;

    die "volume '$name' has a snapshot '$snapshot' already; 'hotset snapshot delete $name $snapshot' deletes it\n"
        if snapshots_of($scfg, $storeid, $name)->{$snapshot};
    my $status = 0;
    eval { ask($scfg, $storeid, 'POST', "/api/v1/volumes/$name/snapshots", { name => "$snapshot" }, \$status) };
    my $err = $@ or return;
    # The snapshot may have been made, and the answer lost.
    return if $status == 599 && eval { get_snapshot($scfg, $storeid, $name, $snapshot) };
    die $err;
}

sub delete_snapshot {
    my ($scfg, $storeid, $name, $snapshot) = @_;
    ask($scfg, $storeid, 'DELETE', snapshot_path($name, $snapshot));
}

sub volume_snapshot_info {
    my ($class, $scfg, $storeid, $volname) = @_;

    my $name = ($class->parse_volname($volname))[1];
    return {} if !defined(pool_name($scfg));
    my $snapshots = snapshots_of($scfg, $storeid, $name);
    delete $snapshots->{+BASE_SNAPSHOT};
    my %info;
    for my $snapshot (values %$snapshots) {
        my $created = int($snapshot->{created_unix_seconds});
        $info{ $snapshot->{name} } = { id => "$created-$snapshot->{name}", timestamp => $created };
    }
    return \%info;
}

sub volume_qemu_snapshot_method { return 'storage'; }

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    create_snapshot($scfg, $storeid, pool_disk($class, $scfg, $volname, 'snapshots'), $snap);
    return;
}

# Proxmox deletes the snapshots of all disks of a VM again if one of them failed: one that is not there is no error.
sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;

    my $name = pool_disk($class, $scfg, $volname, 'snapshots');
    delete_snapshot($scfg, $storeid, $name, $snap) if snapshots_of($scfg, $storeid, $name)->{$snap};
    return;
}

# Any snapshot will do; none has to be deleted for another one.
sub volume_rollback_is_possible {
    my ($class, $scfg, $storeid, $volname, $snap, $blockers) = @_;

    get_snapshot($scfg, $storeid, pool_disk($class, $scfg, $volname, 'snapshots'), $snap);
    return 1;
}

# The VM is stopped, but the daemon may not have noticed the end of its QEMU yet. Clients that stay are not
# disconnected: they would mix their caches with the former content.
sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    my $name = pool_disk($class, $scfg, $volname, 'snapshots');
    get_volume($scfg, $storeid, $name);
    get_snapshot($scfg, $storeid, $name, $snap);
    my $deadline = time() + DISCONNECT_TIMEOUT;
    while (1) {
        my $status = 0;
        eval { ask($scfg, $storeid, 'POST', snapshot_path($name, $snap) . '/rollback', {}, \$status) };
        my $err = $@ or return;
        die $err if $status != 409 || time() >= $deadline;
        sleep(1);
    }
}

sub rename_snapshot { refuse('renaming of snapshots'); }

# Destroys a volume that is not served, with its snapshots and data. Returns false if the pool does not have it.
sub delete_pool_volume {
    my ($scfg, $storeid, $name) = @_;

    # The daemon refuses while the volume has snapshots. Without a list it says more about the cause than this one.
    my $snapshots = eval { snapshots_of($scfg, $storeid, $name) } // {};
    delete_snapshot($scfg, $storeid, $name, $_) for sort keys %$snapshots;

    my $status;
    my $path = '/api/v1/pools/' . pool_name($scfg) . "/volumes/$name";
    eval { ask($scfg, $storeid, 'DELETE', $path, undef, \$status) };
    return 1 if !$@;
    return 0 if defined($status) && $status == 404;
    die $@;
}

# Linked clones

sub base_name {
    my ($name) = @_;
    return $name =~ s/^vm-/base-/r;
}

# Creates a volume with the content of a snapshot, and serves it.
sub clone_snapshot {
    my ($scfg, $storeid, $name, $snapshot, $clone, %more) = @_;

    my $bytes = get_snapshot($scfg, $storeid, $name, $snapshot)->{size_bytes};
    my $status = 0;
    my $path = snapshot_path($name, $snapshot) . '/clone';
    eval { ask($scfg, $storeid, 'POST', $path, { volume => "$clone" }, \$status) };
    my $err = $@;
    # A refusal created nothing; without an answer the volume may exist.
    die $err if $err && $status != 599;
    eval { serve($scfg, $storeid, $clone, $bytes, %more) } if !$err;
    $err ||= $@ or return;
    # One that is served by now stays: it is listed, and can be removed.
    eval { delete_pool_volume($scfg, $storeid, $clone) };
    die $err;
}

sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snap) = @_;

    my $name = pool_disk($class, $scfg, $volname, 'linked clones');
    my $is_base = ($class->parse_volname($volname))[5];
    die "a linked clone is made of a base image or of a snapshot, not of '$volname'\n" if !$is_base && !defined($snap);
    my $clone = $class->free_name($storeid, $scfg, $vmid);
    clone_snapshot($scfg, $storeid, $name, $snap // BASE_SNAPSHOT, $clone);
    return $clone;
}

# Makes a base image of a disk. The pool does not rename volumes: the base image is a clone, served read-only, and the
# disk is deleted. These steps may break off anywhere, and a second call finishes:
# 1. The disk gets the snapshot __base__. From here on a base image of its name is the one of this conversion.
# 2. The snapshot is cloned and served. A second call begins again, because the disk may have been written meanwhile.
# 3. The base image gets its own snapshot __base__: it is complete.
# 4. The disk is no longer served, and so not written. A second call goes on from here.
# 5. The disk is deleted.
sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;

    my $name = pool_disk($class, $scfg, $volname, 'templates');
    my $base = base_name($name);
    die "'$volname' is a base image already\n" if $base eq $name;
    my $existing = pool_volumes($scfg, $storeid)->{$base};
    if (!find_volume($scfg, $storeid, $name)
        && $existing
        && snapshots_of($scfg, $storeid, $base)->{+BASE_SNAPSHOT}) {
        serve($scfg, $storeid, $base, $existing->{size_bytes}, read_only => JSON::true)
            if !find_volume($scfg, $storeid, $base);
        delete_pool_volume($scfg, $storeid, $name);
        return $base;
    }

    get_volume($scfg, $storeid, $name);
    my $snapshots = snapshots_of($scfg, $storeid, $name);
    my $has_begun = delete $snapshots->{+BASE_SNAPSHOT};
    die "volume '$name' has snapshots: " . join(', ', sort keys %$snapshots) . "; delete them first\n" if %$snapshots;
    die "the base image '$base' exists already\n" if $existing && !$has_begun;
    if ($existing) {
        my $served = find_volume($scfg, $storeid, $base);
        ask($scfg, $storeid, 'DELETE', "/api/v1/volumes/$base") if $served && is_ours($scfg, $served);
        delete_pool_volume($scfg, $storeid, $base);
    }
    delete_snapshot($scfg, $storeid, $name, BASE_SNAPSHOT) if $has_begun;

    create_snapshot($scfg, $storeid, $name, BASE_SNAPSHOT);
    clone_snapshot($scfg, $storeid, $name, BASE_SNAPSHOT, $base, read_only => JSON::true);
    create_snapshot($scfg, $storeid, $base, BASE_SNAPSHOT);
    ask($scfg, $storeid, 'DELETE', "/api/v1/volumes/$name");
    delete_pool_volume($scfg, $storeid, $name);
    return $base;
}

1;
