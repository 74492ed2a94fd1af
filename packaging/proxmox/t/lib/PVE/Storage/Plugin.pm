# Replaces Proxmox's base class of this name in tests: the methods that the plug-in inherits or
# calls, written from that class's documentation, without any of its code.
package PVE::Storage::Plugin;

use strict;
use warnings;

my $VOLUMES_PER_GUEST = 1024;

# By the plug-in's type; only the tested plug-in exists.
sub sensitive_properties {
    my ($type) = @_;
    my $class = 'PVE::Storage::Custom::HotsetPlugin';
    die "unknown type '$type'\n" if $type ne $class->type();
    return [sort keys $class->plugindata()->{'sensitive-properties'}->%*];
}

# The first `vm-ID-disk-N` that is not in the list.
sub get_next_vm_diskname {
    my ($taken, $storeid, $vmid, $format, $scfg, $with_suffix) = @_;

    my %numbers = map { m/(?:vm|base)-$vmid-disk-(\d+)/ ? ($1 => 1) : () } @$taken;
    for my $number (0 .. $VOLUMES_PER_GUEST - 1) {
        return "vm-$vmid-disk-$number" if !$numbers{$number};
    }
    die "unable to allocate an image name for VM $vmid in storage '$storeid'\n";
}

# A stream of `raw+size` begins with its length, 64 bits, little-endian.
sub write_common_header {
    my ($fh, $bytes) = @_;
    syswrite($fh, pack('Q<', $bytes), 8);
}

sub read_common_header {
    my ($fh) = @_;
    sysread($fh, my $bytes, 8);
    return unpack('Q<', $bytes);
}

1;
