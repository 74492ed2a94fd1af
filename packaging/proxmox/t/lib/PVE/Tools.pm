# Replaces Proxmox's module of this name in tests: the few helpers that the plug-in calls.
package PVE::Tools;

use strict;
use warnings;

sub file_set_contents {
    my ($file, $content, $mode) = @_;

    sysopen(my $fh, $file, Fcntl::O_CREAT() | Fcntl::O_TRUNC() | Fcntl::O_WRONLY(), $mode) or die "$file: $!\n";
    print $fh $content;
    close($fh) or die "$file: $!\n";
}

sub file_read_firstline {
    my ($file) = @_;

    open(my $fh, '<', $file) or return;
    my $line = <$fh>;
    chomp($line) if defined($line);
    return $line;
}

sub df {
    my ($path, $timeout) = @_;

    open(my $df, '-|', 'df', '--block-size=1', '--output=size,used,avail', $path) or return;
    my ($total, $used, $avail) = (join('', <$df>) =~ m/(\d+)\s+(\d+)\s+(\d+)/) or return;
    return { total => $total, used => $used, avail => $avail };
}

1;
