# SPDX-License-Identifier: Apache-2.0
#
# Proxmox VE storage plug-in for Hotset. VM disks are image files in one directory of this node, or
# volumes of one of the daemon's pools, served by the Hotset daemon of the same node. QEMU reaches
# them over NBD on the daemon's Unix socket; all other requests to the daemon go over HTTP.
#
# The storage is local to the node: each node runs its own daemon, and two daemons never serve one
# image. So there is no `shared`; VMs move between nodes with their disks, as with any local
# storage.
#
# Proxmox loads each module of this folder as a plug-in, so the other parts are in Hotset/.
package PVE::Storage::Custom::HotsetPlugin;

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Fcntl qw(O_CREAT O_EXCL O_WRONLY SEEK_CUR);
use IO::Handle;

use PVE::Storage::Custom::Hotset::Daemon qw(
    DEFAULT_SOCKET DEFAULT_URL LOOK_TIMEOUT $NAME_RE
    all_volumes allocated ask backing delete_token directory find_volume get_volume image is_ours place pool_name
    pool_report pool_volumes serve set_token socket_path
);
use PVE::Storage::Custom::Hotset::Snapshots qw(base_name delete_pool_volume refuse);
use PVE::Storage::Plugin;
use PVE::Tools;

use base qw(PVE::Storage::Custom::Hotset::Snapshots PVE::Storage::Plugin);

# The first API version with sensitive properties, and the newest one that this plug-in knows.
use constant API_OLDEST => 11;
use constant API_NEWEST => 15;

# Seconds for which QEMU holds a guest's requests while the daemon restarts; then it sends them
# again.
use constant RECONNECT_DELAY => 10;
# The daemon takes sizes in sectors.
use constant SECTOR => 512;
# Bytes copied at once; a piece of zeroes becomes a hole in an image.
use constant PIECE => 1 << 16;

# Configuration

sub api {
    my $wanted = eval { PVE::Storage::APIVER() } // API_NEWEST;
    return API_OLDEST if $wanted < API_OLDEST;
    return $wanted > API_NEWEST ? API_NEWEST : $wanted;
}

sub type {
    return 'hotset';
}

sub plugindata {
    return {
        content => [{ images => 1, none => 1 }, { images => 1 }],
        format => [{ raw => 1 }, 'raw'],
        'sensitive-properties' => { 'hotset-token' => 1 },
    };
}

# Names are prefixed, because all plug-ins share one name space, and every name is unique in it.
sub properties {
    return {
        'hotset-directory' => {
            description => "Directory of this node in which the image files lie. Instead of hotset-pool.",
            type => 'string',
            format => 'pve-storage-path',
        },
        'hotset-pool' => {
            description => "Pool of the daemon from which disks are cut. Instead of hotset-directory.",
            type => 'string',
            pattern => '[A-Za-z0-9][A-Za-z0-9_.-]*',
        },
        'hotset-url' => {
            description => "Where the daemon's HTTP interface is. Without it " . DEFAULT_URL . ".",
            type => 'string',
            pattern => 'https?://[^/\s]+',
        },
        'hotset-socket' => {
            description => "The daemon's NBD socket. Without it " . DEFAULT_SOCKET . ".",
            type => 'string',
            format => 'pve-storage-path',
        },
        'hotset-policy' => {
            description => "Write policy of new volumes. Without it the daemon's default.",
            type => 'string',
            enum => ['write-back', 'write-through', 'write-around', 'none'],
        },
        'hotset-token' => {
            description => "Token of the daemon with the role 'administer'.",
            type => 'string',
            pattern => 'hotset_[0-9a-f]+',
        },
    };
}

sub options {
    return {
        'hotset-directory' => { fixed => 1, optional => 1 },
        'hotset-pool' => { fixed => 1, optional => 1 },
        'hotset-url' => { optional => 1 },
        'hotset-socket' => { optional => 1 },
        'hotset-policy' => { optional => 1 },
        'hotset-token' => { optional => 1 },
        nodes => { optional => 1 },
        disable => { optional => 1 },
        content => { optional => 1 },
        bwlimit => { optional => 1 },
    };
}

sub on_add_hook {
    my ($class, $storeid, $scfg, %sensitive) = @_;

    die "either hotset-directory or hotset-pool is needed\n"
        if defined($scfg->{'hotset-directory'}) == defined($scfg->{'hotset-pool'});
    pool_name($scfg) // directory($scfg);
    socket_path($scfg);
    my $token = $sensitive{'hotset-token'};
    die "hotset-token is needed; make one with 'hotset token create proxmox --role administer'\n" if !defined($token);
    set_token($storeid, $token);
    return;
}

# Versions before 13 call this one.
sub on_update_hook {
    my ($class, $storeid, $opts, %sensitive) = @_;

    socket_path($opts);
    return if !exists($sensitive{'hotset-token'});
    if (defined($sensitive{'hotset-token'})) {
        set_token($storeid, $sensitive{'hotset-token'});
    } else {
        delete_token($storeid);
    }
    return;
}

sub on_update_hook_full {
    my ($class, $storeid, $scfg, $update, $delete, $sensitive) = @_;

    return $class->on_update_hook($storeid, $update, %$sensitive);
}

sub on_delete_hook {
    my ($class, $storeid, $scfg) = @_;

    delete_token($storeid);
    return;
}

# Storage implementation

sub parse_volname {
    my ($class, $volname) = @_;

    if ($volname =~ m/^($NAME_RE)\z/) {
        return ('images', $1, $3, undef, undef, $2 eq 'base' ? 1 : undef, 'raw');
    }
    die "unable to parse hotset volume name '$volname'\n";
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;

    refuse('access to snapshots') if defined($snapname);
    my ($vtype, $name, $vmid) = $class->parse_volname($volname);
    my $uri = "nbd+unix:///$name?socket=" . socket_path($scfg);
    return wantarray ? ($uri, $vmid, $vtype) : $uri;
}

# The image file belongs to the daemon while it serves it, so no caller gets a path in the file
# system.
sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;

    return $class->path($scfg, $volname, undef, $snapname);
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $machine_version, $options) = @_;

    refuse('access to snapshots') if $options->{'snapshot-name'};
    my $name = ($class->parse_volname($volname))[1];
    return {
        driver => 'nbd',
        server => { type => 'unix', path => socket_path($scfg) },
        export => "$name",
        'reconnect-delay' => int(RECONNECT_DELAY),
    };
}

sub status {
    my ($class, $storeid, $scfg, $cache) = @_;

    return pool_status($scfg, $storeid) if defined(pool_name($scfg));
    $class->check_connection($storeid, $scfg);
    my $room = PVE::Tools::df(directory($scfg), LOOK_TIMEOUT);
    return if !$room || !$room->{total};
    return ($room->{total}, $room->{avail}, $room->{used}, 1);
}

# Space that is free on a device that takes no slices does not count.
sub pool_status {
    my ($scfg, $storeid) = @_;

    my ($used, $free) = (0, 0);
    for my $group (map { $_->{groups}->@* } pool_report($scfg, $storeid)->{tiers}->@*) {
        $used += $group->{size_bytes} - $group->{free_bytes};
        $free += $group->{free_bytes} if $group->{state} eq 'in-service';
    }
    return (int($used + $free), int($free), int($used), 1);
}

sub check_connection {
    my ($class, $storeid, $scfg) = @_;

    ask($scfg, $storeid, 'GET', '/readyz');
    return 1;
}

sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    if (!defined(pool_name($scfg))) {
        my $directory = directory($scfg);
        die "storage '$storeid': $directory is no directory of this node; create it, for the daemon's user to write\n"
            if !-d $directory;
    }
    my $socket = socket_path($scfg);
    die "storage '$storeid': there is no NBD socket $socket; see [nbd] listen in hotset.toml, or set hotset-socket\n"
        if !-S $socket;
    $class->check_connection($storeid, $scfg);
    pool_report($scfg, $storeid) if defined(pool_name($scfg));
    return 1;
}

sub deactivate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;
    return 1;
}

# A snapshot is activated for a linked clone of it. The daemon does not serve it; it has to exist.
sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;

    return $class->volume_rollback_is_possible($scfg, $storeid, $volname, $snapname) if defined($snapname);
    my $name = ($class->parse_volname($volname))[1];
    my $volume = get_volume($scfg, $storeid, $name);
    # Without this check the connection would fail later, with a less precise error.
    die "volume '$storeid:$volname' is $volume->{state}, and not served; 'hotset volume show $name' says why\n"
        if $volume->{state} !~ m/^(?:active|paused|frozen)$/;
    return 1;
}

# The daemon goes on serving the volume. QEMU's connection ends with QEMU.
sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache) = @_;

    return 1;
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $hints) = @_;

    die "storage '$storeid' has no block devices of this node for '$volname': QEMU reaches volumes over NBD."
        . " A TPM's state needs another storage\n";
}

sub unmap_volume {
    my ($class, $storeid, $scfg, $volname, $snapname) = @_;
    return 1;
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;

    my %wanted = map { $_ => 1 } ($vollist // [])->@*;
    my @ours =
        defined(pool_name($scfg))
        ? grep { $_->{name} =~ m/^$NAME_RE\z/ } values pool_volumes($scfg, $storeid)->%*
        : grep { is_ours($scfg, $_) } all_volumes($scfg, $storeid);
    my $images = [];
    for my $volume (sort { $a->{name} cmp $b->{name} } @ours) {
        my ($name, $owner) = ($class->parse_volname($volume->{name}))[1, 2];
        my $volid = "$storeid:$name";
        next if $vollist ? !$wanted{$volid} : defined($vmid) && $owner ne $vmid;
        my %facts = $volume->{tier_bytes} ? (used => allocated($volume)) : file_facts($scfg, $name);
        push @$images, { volid => $volid, format => 'raw', size => int($volume->{size_bytes}), vmid => $owner, %facts };
    }
    return $images;
}

# Facts about the file of an image: bytes on disk, time.
sub file_facts {
    my ($scfg, $name) = @_;

    my ($ctime, $blocks) = (stat(image($scfg, $name)))[10, 12];
    return defined($ctime) ? (used => $blocks * 512, ctime => $ctime) : ();
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;

    my $name = ($class->parse_volname($volname))[1];
    my $size = int(get_volume($scfg, $storeid, $name)->{size_bytes});
    return $size if !wantarray;
    if (defined(pool_name($scfg))) {
        my $volume = pool_volumes($scfg, $storeid)->{$name};
        return ($size, 'raw', $volume ? allocated($volume) : 0, undef, undef);
    }
    my %facts = file_facts($scfg, $name);
    return ($size, 'raw', $facts{used} // 0, undef, $facts{ctime});
}

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $fmt, $name, $size) = @_;

    die "unsupported format '$fmt': hotset has raw volumes\n" if $fmt ne 'raw';
    $name = $class->free_name($storeid, $scfg, $vmid) if !$name;
    my ($checked, $owner) = ($class->parse_volname($name))[1, 2];
    die "illegal name '$name' - it is not one of VM ${vmid}'s\n" if $owner ne $vmid || $checked !~ m/^vm-/;
    my $backing = backing($scfg, $checked);
    my $pool = pool_name($scfg);
    # The daemon serves an existing file or volume of a pool with its content, which would be another disk's.
    my $what = defined($pool) ? "volume '$checked' of pool $pool" : $backing;
    my $existing = defined($pool) ? pool_volumes($scfg, $storeid) : { -e $backing ? ($checked => 1) : () };
    die "$what exists already; remove it, or serve it with 'hotset volume add $checked --backing $backing'\n"
        if $existing->{$checked};
    my $base = base_name($checked);
    die "illegal name '$checked' - the base image '$base' had it before\n" if $existing->{$base};

    eval { serve($scfg, $storeid, $checked, $size * 1024) };
    if (my $err = $@) {
        # The daemon may have created the volume before it failed. One that is served by now stays: it is listed, and
        # can be removed.
        eval { delete_pool_volume($scfg, $storeid, $checked) } if defined($pool);
        die $err;
    }
    return $checked;
}

# The first free disk name of a VM: no volume of the daemon has it, in any storage, and no left-over
# file or volume of the pool.
sub free_name {
    my ($class, $storeid, $scfg, $vmid) = @_;

    my @taken = map { $_->{name} } all_volumes($scfg, $storeid);
    if (defined(pool_name($scfg))) {
        push @taken, keys pool_volumes($scfg, $storeid)->%*;
    } else {
        opendir(my $entries, directory($scfg)) or die directory($scfg) . " cannot be read: $!\n";
        push @taken, map { m/^(.+)\.raw$/ ? $1 : () } readdir($entries);
    }
    return PVE::Storage::Plugin::get_next_vm_diskname(\@taken, $storeid, $vmid, undef, $scfg);
}

sub free_image {
    my ($class, $storeid, $scfg, $volname, $isBase, $format) = @_;

    my $name = ($class->parse_volname($volname))[1];
    my $pool = pool_name($scfg);
    # Each step may have been done by an earlier call that failed.
    my $served = find_volume($scfg, $storeid, $name);
    if ($served && is_ours($scfg, $served)) {
        # Discards dirty data first, because a removed disk need not be destaged. If that fails, the
        # removal is only slower.
        eval { ask($scfg, $storeid, 'POST', "/api/v1/volumes/$name/invalidate", { discard_dirty => $name }) };
        ask($scfg, $storeid, 'DELETE', "/api/v1/volumes/$name");
        if (defined($pool)) {
            delete_pool_volume($scfg, $storeid, $name);
            return;
        }
    } elsif (defined($pool)) {
        # A served volume of this name lies elsewhere, and is not touched.
        return if delete_pool_volume($scfg, $storeid, $name);
    }
    die "volume '$name' lies on $served->{backing}, which is not in "
        . place($scfg)
        . "; nothing was removed. 'hotset volume remove $name' ends serving it\n"
        if $served && !is_ours($scfg, $served);
    if (defined($pool) || !$served && !-e image($scfg, $name)) {
        warn "volume '$name' does not exist\n";
        return;
    }
    my $file = image($scfg, $name);
    unlink($file) or $!{ENOENT} or die "$file: cannot remove the image: $!\n";
    return;
}

sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running, $snapname) = @_;

    refuse('growth of snapshots') if defined($snapname);
    # QEMU: "Cannot grow NBD nodes". Refused before the daemon resizes its side.
    die "QEMU learns an NBD disk's size when it connects: stop the VM to resize '$volname'\n" if $running;
    my $name = ($class->parse_volname($volname))[1];
    my $now = get_volume($scfg, $storeid, $name)->{size_bytes};
    die "volume '$volname' has $now bytes: it cannot be cut to $size\n" if $size < $now;
    ask($scfg, $storeid, 'POST', "/api/v1/volumes/$name/resize", { size_bytes => int($size) });
    return;
}

# Copies as streams of bytes, for moving disks between nodes. The image file is accessed while the
# volume is unused: after a flush it has the volume's whole content, and an imported file is
# complete before it is served. A volume of a pool has no file: QEMU copies it over NBD.

sub volume_export_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return () if defined(pool_name($scfg));
    return () if defined($snapshot) || defined($base_snapshot) || $with_snapshots;
    return ('raw+size');
}

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots) = @_;

    refuse('snapshots') if defined($snapshot) || defined($base_snapshot) || $with_snapshots;
    die "volume export format $format not available for $class\n"
        if $format ne 'raw+size' || defined(pool_name($scfg));
    my $name = ($class->parse_volname($volname))[1];
    my $volume = get_volume($scfg, $storeid, $name);
    die "volume '$name' lies on $volume->{backing}, which is not in this storage's directory\n"
        if !is_ours($scfg, $volume);

    ask($scfg, $storeid, 'POST', "/api/v1/volumes/$name/flush");
    my $file = image($scfg, $name);
    open(my $image, '<:raw', $file) or die "$file: cannot be read: $!\n";
    PVE::Storage::Plugin::write_common_header($fh, int($volume->{size_bytes}));
    copy_bytes($image, $volume->{size_bytes}, $file, sub { write_all($fh, $_[0]) });
    return;
}

sub volume_import_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return $class->volume_export_formats($scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots);
}

sub volume_import {
    my ($class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots, $allow_rename) = @_;

    refuse('snapshots') if defined($snapshot) || defined($base_snapshot) || $with_snapshots;
    die "volume import format $format not available for $class\n"
        if $format ne 'raw+size' || defined(pool_name($scfg));
    my ($name, $vmid) = ($class->parse_volname($volname))[1, 2];
    if (-e image($scfg, $name) || find_volume($scfg, $storeid, $name)) {
        die "volume '$storeid:$name' already exists\n" if !$allow_rename;
        warn "volume '$storeid:$name' already exists - importing with a different name\n";
        $name = $class->free_name($storeid, $scfg, $vmid);
    }
    my $file = image($scfg, $name);
    my ($bytes) = PVE::Storage::Plugin::read_common_header($fh) =~ m/^(\d+)$/;
    my $whole = int(($bytes + SECTOR - 1) / SECTOR) * SECTOR;
    my $image = make_image($file, directory($scfg));
    eval {
        copy_bytes($fh, $bytes, 'the stream', sub { write_sparse($image, $_[0]) });
        truncate($image, $whole) or die "$file: cannot be made $whole bytes long: $!\n";
        $image->sync() or die "$file: cannot be flushed: $!\n";
        close($image) or die "$file: cannot be closed: $!\n";
        serve($scfg, $storeid, $name, $whole);
    };
    if (my $err = $@) {
        unlink($file);
        die $err;
    }
    return "$storeid:$name";
}

# Creates an empty file for the daemon's user, which is the owner of the directory.
sub make_image {
    my ($file, $directory) = @_;

    sysopen(my $image, $file, O_CREAT | O_EXCL | O_WRONLY, 0600) or die "$file: cannot be created: $!\n";
    my ($owner, $group) = (stat($directory))[4, 5];
    chown($owner, $group, $image) or die "$file: cannot be given to the owner of $directory: $!\n";
    return $image;
}

# Reads so many bytes and passes them on piece by piece.
sub copy_bytes {
    my ($from, $bytes, $what, $take) = @_;

    my $left = $bytes;
    while ($left > 0) {
        my $read = sysread($from, my $piece, $left < PIECE ? $left : PIECE);
        next if !defined($read) && $!{EINTR};
        die "$what cannot be read: $!\n" if !defined($read);
        die "$what ended $left bytes before its end\n" if $read == 0;
        $left -= $read;
        $take->($piece);
    }
}

sub write_all {
    my ($to, $piece) = @_;

    my $done = 0;
    while ($done < length($piece)) {
        my $written = syswrite($to, $piece, length($piece) - $done, $done);
        next if !defined($written) && $!{EINTR};
        die "cannot write: $!\n" if !defined($written);
        $done += $written;
    }
}

sub write_sparse {
    my ($image, $piece) = @_;

    return write_all($image, $piece) if $piece =~ tr/\0//c;
    sysseek($image, length($piece), SEEK_CUR) or die "cannot seek: $!\n";
}

# The identity of the storage: this machine's directory or pool, under any storage name. The machine's id
# itself is not disclosed.
sub get_identity {
    my ($class, $scfg, $storeid) = @_;

    my $machine = PVE::Tools::file_read_firstline('/etc/machine-id')
        or die "/etc/machine-id is missing: this node has no identity\n";
    return 'hotset-' . substr(sha256_hex("hotset:$machine:" . (defined(pool_name($scfg)) ? backing($scfg) : directory($scfg))), 0, 32);
}

# Features

# What a storage on a pool does with the current state of a disk, with a base image, and with a snapshot. New volumes
# read as zeroes. A snapshot is copied through a linked clone, because the daemon does not serve it.
my %POOL_FEATURES = (
    copy => { current => 1, base => 1 },
    sparseinit => { current => 1, base => 1 },
    snapshot => { current => 1 },
    template => { current => 1 },
    clone => { base => 1, snapshot => 1 },
);
my %FILE_FEATURES = (copy => { current => 1 }, sparseinit => { current => 1 });

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $opts) = @_;

    my $is_base = ($class->parse_volname($volname))[5];
    my $of = defined($snapname) ? 'snapshot' : $is_base ? 'base' : 'current';
    my $features = defined(pool_name($scfg)) ? \%POOL_FEATURES : \%FILE_FEATURES;
    return $features->{$feature}->{$of};
}

sub rename_volume {
    die "hotset does not rename volumes: to give a disk to another VM, move or copy it\n";
}

1;
