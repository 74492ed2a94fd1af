# Replaces Proxmox's module of this name in tests: the versions of the storage interface, and the
# checks of a plug-in by the loader and by the interface to QEMU.
package PVE::Storage;

use strict;
use warnings;

# Tests set these to the values of different releases of Proxmox.
our $APIVER = 15;
our $APIAGE = 6;

sub APIVER { return $APIVER; }

# Properties of Proxmox's own plug-ins. A foreign plug-in may use them but not define them.
our %OWN_PROPERTIES = map { $_ => 1 } qw(
    type storage nodes content disable shared format path server port export options username password domain portal target
    pool datastore fingerprint bwlimit is_mountpoint mkdir base vgname thinpool monhost
);

# Checks a plug-in as the loader does, and dies where the loader would refuse.
sub load {
    my ($class) = @_;

    die "not derived from PVE::Storage::Plugin\n" if !$class->isa('PVE::Storage::Plugin');
    die "does not provide an api() method\n" if !$class->can('api');
    my $version = $class->api();
    die "implements an API version newer than current ($version > $APIVER)\n" if $version > $APIVER;
    my $oldest = $APIVER - $APIAGE;
    die "API version too old, please update the plugin ($version < $oldest)\n" if $version < $oldest;

    my $properties = $class->properties();
    for my $name (sort keys %$properties) {
        die "duplicate property '$name'\n" if $OWN_PROPERTIES{$name};
    }
    for my $name (sort keys $class->options()->%*) {
        die "undefined property '$name'\n" if !$properties->{$name} && !$OWN_PROPERTIES{$name};
    }
    return $version;
}

# Options of QEMU's NBD driver; any other is dropped.
my %NBD_OPTIONS = map { $_ => 1 } qw(driver server export reconnect-delay open-timeout);

sub refused_options {
    my ($blockdev) = @_;
    return grep { !$NBD_OPTIONS{$_} } sort keys %$blockdev;
}

1;
