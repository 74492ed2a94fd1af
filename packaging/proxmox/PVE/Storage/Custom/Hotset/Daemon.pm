# SPDX-License-Identifier: Apache-2.0
#
# The Hotset daemon of this node, as the storage plug-in sees it: where a storage's settings say that
# it is, its HTTP interface with the access token, and its volumes and pools.
package PVE::Storage::Custom::Hotset::Daemon;

use strict;
use warnings;

use Exporter qw(import);
use HTTP::Tiny;
use JSON qw(decode_json encode_json);

use PVE::Tools;

our @EXPORT_OK = qw(
    DEFAULT_SOCKET DEFAULT_URL LOOK_TIMEOUT $NAME_RE
    all_volumes allocated ask backing delete_token directory find_volume get_volume image is_ours place pool_name
    pool_report pool_volumes serve set_token socket_path
);

use constant DEFAULT_URL => 'http://127.0.0.1:7400';
use constant DEFAULT_SOCKET => '/run/hotset/nbd.sock';

# Time-outs in seconds. Proxmox queries the status of all storages in turn, so a silent one must not
# delay the others. A change may have to destage dirty data to slow disks first.
use constant LOOK_TIMEOUT => 5;
use constant CHANGE_TIMEOUT => 600;
# Volumes per page of the list.
use constant PAGE => 500;

# Name of a disk: whether it is a base image, and its VM.
our $NAME_RE = qr/(vm|base)-([1-9][0-9]*)-[A-Za-z0-9][A-Za-z0-9_.+-]*/;
my $PATH_RE = qr!/[A-Za-z0-9_./+-]+!;

# Folder of the tokens: readable by root alone, the same on all nodes.
our $SECRETS = '/etc/pve/priv/storage';

# Settings

# Checks a setting that becomes part of a path or of a URI, and untaints it: Proxmox's daemons run
# with -T.
sub checked_path {
    my ($scfg, $key, $default) = @_;

    my $value = $scfg->{$key} // $default;
    die "storage definition has no $key\n" if !defined($value);
    my ($path) = $value =~ m/^($PATH_RE)\z/
        or die "$key '$value': an absolute path of letters, digits and _ . + - is needed\n";
    $path =~ s!/+$!!;
    return $path;
}

sub directory { return checked_path($_[0], 'hotset-directory'); }
sub socket_path { return checked_path($_[0], 'hotset-socket', DEFAULT_SOCKET); }

# The pool of the storage, untainted; nothing for a storage of image files.
sub pool_name {
    my ($scfg) = @_;

    return if !defined($scfg->{'hotset-pool'});
    my ($pool) = $scfg->{'hotset-pool'} =~ m/^([A-Za-z0-9][A-Za-z0-9_.-]*)\z/
        or die "hotset-pool '$scfg->{'hotset-pool'}' is no pool's name\n";
    return $pool;
}

# What the disks of the storage lie on, for messages.
sub place {
    my ($scfg) = @_;

    my $pool = pool_name($scfg);
    return defined($pool) ? "pool $pool" : "this storage's directory";
}

sub token_file {
    my ($storeid) = @_;
    my ($checked) = $storeid =~ m/^([A-Za-z][A-Za-z0-9_.-]*)\z/ or die "'$storeid' is no storage's name\n";
    return "$SECRETS/$checked.hotset-token";
}

sub set_token {
    my ($storeid, $token) = @_;

    mkdir $SECRETS;
    PVE::Tools::file_set_contents(token_file($storeid), "$token\n", 0600);
}

sub delete_token {
    my ($storeid) = @_;

    my $file = token_file($storeid);
    -e $file or return;
    unlink($file) or die "$file: cannot remove the token: $!\n";
}

sub token_of {
    my ($storeid) = @_;

    my $file = token_file($storeid);
    my $line = -e $file ? PVE::Tools::file_read_firstline($file) : undef;
    die "storage '$storeid' has no token; make one with 'hotset token create proxmox --role administer',"
        . " then 'pvesm set $storeid --hotset-token TOKEN'\n"
        if !defined($line);
    my ($token) = $line =~ m/^(\S+)$/ or die "$file holds no token\n";
    return $token;
}

# The daemon

# Sends a request to the daemon and returns the answer, if it has one. Dies with the daemon's error;
# `$status` receives the HTTP status, to distinguish refusals.
sub ask {
    my ($scfg, $storeid, $method, $path, $body, $status) = @_;

    my $url = $scfg->{'hotset-url'} // DEFAULT_URL;
    my ($base) = $url =~ m!^(https?://[^/\s]+)/?$! or die "hotset-url '$url': http://HOST:PORT is needed\n";
    my $headers = { Authorization => 'Bearer ' . token_of($storeid) };
    my $options = { headers => $headers };
    if (defined($body)) {
        $headers->{'Content-Type'} = 'application/json';
        $options->{content} = encode_json($body);
    }
    my $http = HTTP::Tiny->new(
        timeout => $method eq 'GET' ? LOOK_TIMEOUT : CHANGE_TIMEOUT,
        verify_SSL => 1,
        max_redirect => 0,
        # No proxy of the environment between a node and its own daemon.
        proxy => undef,
        http_proxy => undef,
        https_proxy => undef,
    );
    my $reply = $http->request($method, "$base$path", $options);
    $$status = $reply->{status} if $status;

    my $content = $reply->{content} // '';
    if (!$reply->{success}) {
        if ($reply->{status} == 599) {
            $content =~ s/\s+$//;
            die "hotset at $base does not answer: $content; is the daemon running, and has it [api]?\n";
        }
        my $problem = eval { decode_json($content) };
        my $detail = ref($problem) eq 'HASH' ? $problem->{detail} : undef;
        die "hotset: " . ($detail // "$reply->{status} $reply->{reason}") . "\n";
    }
    return if $content !~ m/^\s*[\[{]/;
    my $answer = eval { decode_json($content) };
    die "hotset at $base: the answer to $method $path makes no sense\n" if !defined($answer);
    return $answer;
}

# Finds a volume by its name; returns nothing if it does not exist.
sub find_volume {
    my ($scfg, $storeid, $name) = @_;

    my $status;
    my $volume = eval { ask($scfg, $storeid, 'GET', "/api/v1/volumes/$name", undef, \$status) };
    if (my $err = $@) {
        return if defined($status) && $status == 404;
        die $err;
    }
    return $volume;
}

sub get_volume {
    my ($scfg, $storeid, $name) = @_;

    my $volume = find_volume($scfg, $storeid, $name);
    return $volume if $volume;
    my $backing = backing($scfg, $name);
    my $exists = defined(pool_name($scfg)) ? pool_volumes($scfg, $storeid)->{$name} : -e $backing;
    my $remedy = $exists ? "; its data is there: 'hotset volume add $name --backing $backing' serves it" : '';
    die "hotset has no volume '$name'$remedy\n";
}

sub all_volumes {
    my ($scfg, $storeid) = @_;

    my @volumes;
    my $after = '';
    while (1) {
        my $page = ask($scfg, $storeid, 'GET', '/api/v1/volumes?limit=' . PAGE . $after);
        push @volumes, $page->{volumes}->@*;
        last if !defined($page->{next});
        (my $next = $page->{next}) =~ s/([^A-Za-z0-9_.-])/sprintf('%%%02X', ord($1))/ge;
        $after = "&after=$next";
    }
    return @volumes;
}

# Images

sub image {
    my ($scfg, $name) = @_;
    return directory($scfg) . "/$name.raw";
}

# The backing of a disk: its image, or the pool, where it has its own name.
sub backing {
    my ($scfg, $name) = @_;

    my $pool = pool_name($scfg);
    return defined($pool) ? "pool://$pool" : image($scfg, $name);
}

# Whether a volume belongs to this storage: it is cut from the pool, or its image is in the
# directory, under its name.
sub is_ours {
    my ($scfg, $volume) = @_;
    return $volume->{name} =~ m/^$NAME_RE\z/ && $volume->{backing} eq backing($scfg, $volume->{name});
}

# Pools

# The pool of the storage. The daemon opens it if it is not open.
sub pool_report {
    my ($scfg, $storeid) = @_;
    return ask($scfg, $storeid, 'GET', '/api/v1/pools/' . pool_name($scfg));
}

# Its volumes by name, those that are not served included: a failed or interrupted change may have
# left them.
sub pool_volumes {
    my ($scfg, $storeid) = @_;
    return { map { $_->{name} => $_ } pool_report($scfg, $storeid)->{volumes}->@* };
}

# Bytes of a pool's volume that are allocated.
sub allocated {
    my ($volume) = @_;

    my $bytes = 0;
    $bytes += $_ for $volume->{tier_bytes}->@*;
    return int($bytes);
}

# Has the daemon serve a disk. A missing image is created, sparse, with so many bytes; a missing
# volume of a pool likewise.
sub serve {
    my ($scfg, $storeid, $name, $bytes, %more) = @_;

    my $volume = { name => "$name", backing => backing($scfg, $name), size_bytes => int($bytes), %more };
    $volume->{policy} = $scfg->{'hotset-policy'} if defined($scfg->{'hotset-policy'});
    ask($scfg, $storeid, 'POST', '/api/v1/volumes', $volume);
}

1;
