# Tests each function of the plug-in against a running daemon, under -T as Proxmox's own daemons
# run. HOTSET_BIN is the daemon's binary.
#   perl -T -Ipackaging/proxmox/t/lib -Ipackaging/proxmox packaging/proxmox/t/contract.t
# The test needs no Proxmox: lib/ replaces its base class and its loader, written from their
# documentation.
use strict;
use warnings;

use File::Temp;
use IO::Select;
use IO::Socket::INET;
use JSON;
use POSIX qw(WNOHANG);
use Test::More;
use Time::HiRes qw(sleep);

use PVE::Storage;
use PVE::Storage::Custom::HotsetPlugin;

my $PLUGIN = 'PVE::Storage::Custom::HotsetPlugin';
my $MIB = 1 << 20;
my $STORE = 'cache';

my ($HOTSET) = ($ENV{HOTSET_BIN} // '') =~ m/^(.+)$/ or die "HOTSET_BIN names no binary\n";
$ENV{PATH} = '/usr/sbin:/usr/bin:/sbin:/bin';
delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};

my $folder = File::Temp->newdir();
my ($root) = "$folder" =~ m/^(.+)$/;
my $socket = "$root/nbd.sock";
my $images = "$root/images";
mkdir $images or die "$images: $!\n";
$PVE::Storage::Custom::Hotset::Daemon::SECRETS = "$root/secrets";

# The daemon, and commands of it and of QEMU

my $port = do {
    my $free = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no port is free: $!\n";
    $free->sockport();
};
write_file("$root/hotset.toml", <<"TOML");
[state]
directory = "$root/state"
[memory]
size = "64 MiB"
[control]
socket = "$root/control.sock"
[nbd]
listen = ["unix:$socket"]
[api]
listen = "127.0.0.1:$port"
[[pool]]
name = "tank"
slice = "1 MiB"
[[pool.tier]]
name = "fast"
class = "ssd"
devices = ["$root/pool-0"]
[[pool.tier]]
name = "slow"
class = "10k"
devices = ["$root/pool-1"]
TOML
for my $device ("$root/pool-0", "$root/pool-1") {
    write_file($device, '');
    truncate($device, 64 * $MIB) or die "$device: $!\n";
}

my $daemon;

sub write_file {
    my ($path, $text) = @_;
    open(my $file, '>', $path) or die "$path: $!\n";
    print $file $text;
    close($file) or die "$path: $!\n";
}

sub read_file {
    my ($path) = @_;
    open(my $file, '<:raw', $path) or die "$path: $!\n";
    local $/;
    return <$file>;
}

sub start_daemon {
    $daemon = fork() // die "fork: $!\n";
    if (!$daemon) {
        open(STDOUT, '>>', "$root/log");
        open(STDERR, '>>', "$root/log");
        exec($HOTSET, 'serve', '--config', "$root/hotset.toml") or POSIX::_exit(1);
    }
    for (1 .. 600) {
        return if HTTP::Tiny->new->get("http://127.0.0.1:$port/readyz")->{success};
        die "the daemon ended:\n" . read_file("$root/log") if waitpid($daemon, WNOHANG);
        sleep(0.1);
    }
    die "the daemon is not ready:\n" . read_file("$root/log");
}

sub stop_daemon {
    return if !$daemon;
    kill('TERM', $daemon);
    waitpid($daemon, 0);
    $daemon = undef;
}

# Runs a program and returns its output; dies if it fails.
sub run {
    my @command = @_;
    open(my $output, '-|', @command) or die "$command[0]: $!\n";
    my $text = join('', <$output>);
    close($output) or die "@command: failed ($?)\n$text";
    chomp($text);
    return $text;
}

sub hotset { return run($HOTSET, @_, '--socket', "$root/control.sock"); }

# Opens a disk as QEMU does: with the options from the plug-in, below a node of format raw as in
# Proxmox.
sub qemu_io {
    my ($blockdev, @commands) = @_;
    my $node = encode_json({ driver => 'raw', file => $blockdev });
    return run('qemu-io', (map { ('-c', $_) } @commands), "json:$node");
}

# Checks that a call dies with a message that fits.
sub refuses {
    my ($what, $pattern, $call) = @_;
    my @result = eval { $call->() };
    like($@, $pattern, $what);
}

sub holds { my ($names) = @_; return [sort map { $_->{volid} } @$names]; }

END {
    my $result = $?;
    stop_daemon();
    $? = $result;
}

run($HOTSET, 'pool', 'create', 'tank', '--config', "$root/hotset.toml");
start_daemon();
my ($token) = hotset('token', 'create', 'proxmox', '--role', 'administer') =~ m/^(\S+)$/;
my $scfg = {
    type => 'hotset',
    'hotset-directory' => "$images/",
    'hotset-url' => "http://127.0.0.1:$port",
    'hotset-socket' => $socket,
    content => { images => 1 },
};

subtest 'the loader takes it, from Proxmox VE 8.4 on' => sub {
    is(PVE::Storage::load($PLUGIN), 15, 'the newest that it was written against');
    for my $version (11 .. 14) {
        local $PVE::Storage::APIVER = $version;
        is(PVE::Storage::load($PLUGIN), $version, "a Proxmox with $version");
    }
    {
        local $PVE::Storage::APIVER = 17;
        is(PVE::Storage::load($PLUGIN), 15, 'a newer one');
    }
    local $PVE::Storage::APIVER = 10;
    refuses('one without sensitive properties', qr/newer than current/, sub { PVE::Storage::load($PLUGIN) });
};

subtest 'its configuration' => sub {
    is($PLUGIN->type(), 'hotset');
    is_deeply($PLUGIN->plugindata()->{content}, [{ images => 1, none => 1 }, { images => 1 }]);
    is_deeply($PLUGIN->plugindata()->{format}, [{ raw => 1 }, 'raw']);
    is_deeply(PVE::Storage::Plugin::sensitive_properties('hotset'), ['hotset-token'], 'the token is not in storage.cfg');
    is_deeply([sort grep { !/^hotset-/ } keys $PLUGIN->properties()->%*], [], 'names of its own');
    ok($PLUGIN->options()->{'hotset-directory'}->{fixed}, 'the directory does not move');
    ok(!exists($PLUGIN->options()->{shared}), 'the storage is the node\'s own');
    my $pattern = $PLUGIN->properties()->{'hotset-token'}->{pattern};
    like($token, qr/^$pattern$/, 'a token fits its pattern');
};

subtest 'the token comes with the storage, changes and goes with it' => sub {
    my $file = "$root/secrets/$STORE.hotset-token";
    refuses('a storage without one', qr/hotset token create/, sub { $PLUGIN->on_add_hook($STORE, $scfg) });
    refuses('a directory that would break a URI', qr/absolute path/,
        sub { $PLUGIN->on_add_hook($STORE, { %$scfg, 'hotset-directory' => '/x y?z' }, 'hotset-token' => $token) });
    $PLUGIN->on_add_hook($STORE, $scfg, 'hotset-token' => 'hotset_00');
    is(read_file($file), "hotset_00\n");
    is((stat($file))[2] & 0777, 0600, 'for root alone');
    refuses('a wrong one', qr/token/, sub { $PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', undef, 1024) });
    $PLUGIN->on_update_hook_full($STORE, $scfg, { 'hotset-policy' => 'write-through' }, [], {});
    is(read_file($file), "hotset_00\n", 'another setting leaves it');
    $PLUGIN->on_update_hook_full($STORE, $scfg, {}, ['hotset-token'], { 'hotset-token' => undef });
    ok(!-e $file, 'deleted');
    refuses('none', qr/pvesm set cache --hotset-token/, sub { $PLUGIN->check_connection($STORE, $scfg) });
    $PLUGIN->on_update_hook($STORE, {}, 'hotset-token' => $token);
    is(read_file($file), "$token\n", 'as versions before 13 set it');
};

subtest 'the storage' => sub {
    is($PLUGIN->check_connection($STORE, $scfg), 1);
    ok($PLUGIN->activate_storage($STORE, $scfg, {}));
    ok($PLUGIN->deactivate_storage($STORE, $scfg, {}));
    my ($total, $avail, $used, $active) = $PLUGIN->status($STORE, $scfg, {});
    ok($active && $total > 0 && $avail > 0 && $avail <= $total && $used > 0, 'its room is the directory\'s');
    my $identity = $PLUGIN->get_identity($scfg, $STORE);
    like($identity, qr/^hotset-[0-9a-f]{32}$/);
    is($PLUGIN->get_identity($scfg, 'other'), $identity, 'whatever it is called');
    isnt($PLUGIN->get_identity({ %$scfg, 'hotset-directory' => '/srv/b' }, $STORE), $identity);
    refuses('no such directory', qr/no directory/,
        sub { $PLUGIN->activate_storage($STORE, { %$scfg, 'hotset-directory' => "$root/none" }, {}) });
    refuses('no such socket', qr/no NBD socket/,
        sub { $PLUGIN->activate_storage($STORE, { %$scfg, 'hotset-socket' => "$root/none.sock" }, {}) });
    refuses('nobody there', qr/does not answer/,
        sub { $PLUGIN->check_connection($STORE, { %$scfg, 'hotset-url' => 'http://127.0.0.1:1' }) });
    local @ENV{qw(http_proxy all_proxy)} = ('http://127.0.0.1:1') x 2;
    is($PLUGIN->check_connection($STORE, $scfg), 1, 'no proxy stands between');
};

subtest 'names' => sub {
    is_deeply([$PLUGIN->parse_volname('vm-100-disk-0')], ['images', 'vm-100-disk-0', 100, undef, undef, undef, 'raw']);
    is(($PLUGIN->parse_volname('vm-7-cloudinit'))[2], 7);
    is_deeply([($PLUGIN->parse_volname('base-100-disk-0'))[1, 2, 5]], ['base-100-disk-0', 100, 1], 'a base image');
    for my $wrong ('web01', '100/vm-100-disk-0.raw', 'vm-100-../../x', 'vm-0-disk-0', "vm-1-disk-0\n") {
        refuses($wrong =~ s/\n/\\n/r, qr/unable to parse/, sub { $PLUGIN->parse_volname($wrong) });
    }
    my @path = $PLUGIN->path($scfg, 'vm-100-disk-0', $STORE);
    is_deeply(\@path, ["nbd+unix:///vm-100-disk-0?socket=$socket", 100, 'images']);
    is($PLUGIN->filesystem_path($scfg, 'vm-100-disk-0'), $path[0], 'nobody opens the file beside the daemon');
};

subtest 'disks are made, used by QEMU, and removed' => sub {
    is($PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', undef, 8 * 1024), 'vm-100-disk-0');
    is($PLUGIN->alloc_image($STORE, { %$scfg, 'hotset-policy' => 'write-through' }, 100, 'raw', undef, 1024), 'vm-100-disk-1');
    is($PLUGIN->alloc_image($STORE, $scfg, 200, 'raw', 'vm-200-cloudinit', 4096), 'vm-200-cloudinit');
    my $shown = decode_json(hotset('volume', 'show', 'vm-100-disk-1', '--json'));
    is($shown->{policy}, 'write-through');
    is($shown->{size_bytes}, $MIB, 'sizes come in KiB');
    is($shown->{backing}, "$images/vm-100-disk-1.raw");

    refuses('a format', qr/format/, sub { $PLUGIN->alloc_image($STORE, $scfg, 100, 'qcow2', undef, 1024) });
    refuses('a name of another VM', qr/VM 100's/, sub { $PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', 'vm-1-disk-0', 1024) });
    refuses('a base image', qr/illegal name/, sub { $PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', 'base-100-disk-0', 1024) });
    refuses('a name twice', qr/exists already/, sub { $PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', 'vm-100-disk-0', 1024) });

    for my $name ('vm-100-disk-0', 'vm-200-cloudinit') {
        is($PLUGIN->activate_volume($STORE, $scfg, $name, undef, {}, {}), 1);
        my $blockdev = $PLUGIN->qemu_blockdev_options($scfg, $STORE, $name, '10.0+pve0', {});
        is_deeply([PVE::Storage::refused_options($blockdev)], [], 'only what Proxmox passes on');
        is($blockdev->{'reconnect-delay'}, 10);
        qemu_io($blockdev, 'read -P 0 0 1M', 'write -P 0x5a 64k 1M', 'flush', 'read -P 0x5a 64k 1M');
        is($PLUGIN->deactivate_volume($STORE, $scfg, $name, undef, {}), 1);
    }
    my $info = decode_json(run('qemu-img', 'info', '--output=json', scalar($PLUGIN->path($scfg, 'vm-100-disk-0', $STORE))));
    is($info->{'virtual-size'}, 8 * $MIB, 'the path is one that QEMU takes');

    is(scalar($PLUGIN->volume_size_info($scfg, $STORE, 'vm-100-disk-0', 5)), 8 * $MIB);
    my ($size, $format, $used, $parent, $ctime) = $PLUGIN->volume_size_info($scfg, $STORE, 'vm-100-disk-0', 5);
    is_deeply([$size, $format, $parent], [8 * $MIB, 'raw', undef]);
    ok($used >= $MIB && $used < 8 * $MIB, "sparse: $used bytes");
    ok(abs($ctime - time()) < 600);

    refuses('one that is not there', qr/no volume 'vm-9-disk-0'/, sub { $PLUGIN->activate_volume($STORE, $scfg, 'vm-9-disk-0') });
    refuses('its size', qr/no volume/, sub { $PLUGIN->volume_size_info($scfg, $STORE, 'vm-9-disk-0') });
    refuses('a local device', qr/NBD/, sub { $PLUGIN->map_volume($STORE, $scfg, 'vm-100-disk-0') });
    is($PLUGIN->unmap_volume($STORE, $scfg, 'vm-100-disk-0'), 1);
};

subtest 'what is listed, and what is not this storage\'s' => sub {
    hotset('volume', 'add', 'vm-100-disk-7', '--backing', "$root/elsewhere.img", '--size', '1 MiB');
    hotset('volume', 'add', 'web01', '--backing', "$images/web01.raw", '--size', '1 MiB');
    my @all = map { "$STORE:$_" } qw(vm-100-disk-0 vm-100-disk-1 vm-200-cloudinit);
    is_deeply(holds($PLUGIN->list_images($STORE, $scfg)), \@all);
    is_deeply(holds($PLUGIN->list_images($STORE, $scfg, 200)), [$all[2]]);
    is_deeply(holds($PLUGIN->list_images($STORE, $scfg, undef, [@all[1, 2], 'other:vm-100-disk-0'])), [@all[1, 2]]);
    my ($first) = grep { $_->{volid} eq $all[0] } $PLUGIN->list_images($STORE, $scfg)->@*;
    is_deeply([@$first{qw(format size vmid)}], ['raw', 8 * $MIB, 100]);
    ok($first->{used} >= $MIB && $first->{ctime} > 0);

    refuses('removing one of elsewhere', qr/not in this storage's directory/, sub { $PLUGIN->free_image($STORE, $scfg, 'vm-100-disk-7') });
    ok(-e "$root/elsewhere.img", 'its image is untouched');
    like(hotset('volume', 'list'), qr/vm-100-disk-7 +active/, 'and it is served');
    hotset('volume', 'remove', 'vm-100-disk-7');
};

subtest 'a name is free when nothing bears it' => sub {
    hotset('volume', 'remove', 'vm-100-disk-1');
    ok(-e "$images/vm-100-disk-1.raw");
    refuses('an image that is not served', qr/hotset volume add vm-100-disk-1 --backing/,
        sub { $PLUGIN->activate_volume($STORE, $scfg, 'vm-100-disk-1') });
    is($PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', undef, 1024), 'vm-100-disk-2', 'a file left over is nobody\'s new disk');
    is($PLUGIN->free_image($STORE, $scfg, 'vm-100-disk-1', 0, 'raw'), undef, 'nor does it stay for ever');
    ok(!-e "$images/vm-100-disk-1.raw");
    is($PLUGIN->free_image($STORE, $scfg, 'vm-100-disk-0', 0, 'raw'), undef);
    ok(!-e "$images/vm-100-disk-0.raw");
    is($PLUGIN->alloc_image($STORE, $scfg, 100, 'raw', undef, 8 * 1024), 'vm-100-disk-0', 'the name again');
    my $blockdev = $PLUGIN->qemu_blockdev_options($scfg, $STORE, 'vm-100-disk-0', '10.0+pve0', {});
    qemu_io($blockdev, 'read -P 0 0 8M');
    {
        my @warnings;
        local $SIG{__WARN__} = sub { push @warnings, @_ };
        is($PLUGIN->free_image($STORE, $scfg, 'vm-100-disk-9', 0, 'raw'), undef);
        like("@warnings", qr/does not exist/, 'removing what is gone is no error');
    }
};

subtest 'growth' => sub {
    my $grow = sub { $PLUGIN->volume_resize($scfg, $STORE, 'vm-100-disk-0', @_) };
    $grow->(16 * $MIB, 0);
    is(scalar($PLUGIN->volume_size_info($scfg, $STORE, 'vm-100-disk-0')), 16 * $MIB);
    is(-s "$images/vm-100-disk-0.raw", 16 * $MIB);
    my $blockdev = $PLUGIN->qemu_blockdev_options($scfg, $STORE, 'vm-100-disk-0', '10.0+pve0', {});
    qemu_io($blockdev, 'write -P 0x77 15M 1M', 'flush');
    refuses('while the VM runs', qr/stop the VM/, sub { $grow->(32 * $MIB, 1) });
    refuses('smaller', qr/cannot be cut/, sub { $grow->(8 * $MIB, 0) });
    refuses('a snapshot', qr/snapshots/, sub { $grow->(32 * $MIB, 0, 's1') });
    is(scalar($PLUGIN->volume_size_info($scfg, $STORE, 'vm-100-disk-0')), 16 * $MIB, 'nothing has changed');
};

subtest 'what is dirty is removed' => sub {
    $PLUGIN->alloc_image($STORE, $scfg, 300, 'raw', undef, 8 * 1024);
    qemu_io($PLUGIN->qemu_blockdev_options($scfg, $STORE, 'vm-300-disk-0', '10.0+pve0', {}), 'write -P 1 0 4M');
    is($PLUGIN->free_image($STORE, $scfg, 'vm-300-disk-0', 0, 'raw'), undef);
    ok(!-e "$images/vm-300-disk-0.raw");
    is_deeply($PLUGIN->list_images($STORE, $scfg, 300), []);
};

subtest 'streams from and to other storages' => sub {
    my @plain = ('raw+size', undef, undef, 0);
    # QEMU flushes when it closes a disk. The export must flush other writes itself.
    run('nbdsh', '-u', scalar($PLUGIN->path($scfg, 'vm-100-disk-0', $STORE)), '-c', 'h.pwrite(b"\x33" * 65536, 5 << 20)');
    is_deeply([$PLUGIN->volume_export_formats($scfg, $STORE, 'vm-100-disk-0', undef, undef, 0)], ['raw+size']);
    is_deeply([$PLUGIN->volume_import_formats($scfg, $STORE, 'vm-100-disk-0', undef, undef, 0)], ['raw+size']);
    for my $asked (['s1', undef, 0], [undef, 's1', 0], [undef, undef, 1]) {
        is_deeply([$PLUGIN->volume_export_formats($scfg, $STORE, 'vm-100-disk-0', @$asked)], []);
    }
    open(my $out, '>:raw', "$root/stream") or die $!;
    $PLUGIN->volume_export($scfg, $STORE, $out, 'vm-100-disk-0', @plain);
    close($out);
    my $stream = read_file("$root/stream");
    is(length($stream), 8 + 16 * $MIB);
    is(unpack('Q<', $stream), 16 * $MIB);
    ok(substr($stream, 8 + 5 * $MIB, 1 << 16) eq "\x33" x (1 << 16), 'what was written last is in it');
    ok(substr($stream, 8 + 15 * $MIB) eq "\x77" x $MIB, 'to its end');

    my $import = sub {
        my ($file, $name, $rename) = @_;
        open(my $in, '<:raw', $file) or die $!;
        return $PLUGIN->volume_import($scfg, $STORE, $in, $name, @plain, $rename);
    };
    is($import->("$root/stream", 'vm-400-disk-0', 0), "$STORE:vm-400-disk-0");
    my $imported = $PLUGIN->qemu_blockdev_options($scfg, $STORE, 'vm-400-disk-0', '10.0+pve0', {});
    qemu_io($imported, 'read -P 0 0 5M', 'read -P 0x33 5M 64k', 'read -P 0x77 15M 1M', 'write -P 9 0 64k');
    ok((stat("$images/vm-400-disk-0.raw"))[12] * 512 < 4 * $MIB, 'what is zero takes no room');
    refuses('a name that is taken', qr/already exists/, sub { $import->("$root/stream", 'vm-400-disk-0', 0) });
    {
        local $SIG{__WARN__} = sub { };
        is($import->("$root/stream", 'vm-400-disk-0', 1), "$STORE:vm-400-disk-1", 'unless another may be taken');
    }
    write_file("$root/short", substr($stream, 0, 8 + 3 * $MIB));
    refuses('a stream that breaks off', qr/bytes before its end/, sub { $import->("$root/short", 'vm-400-disk-5', 0) });
    ok(!-e "$images/vm-400-disk-5.raw", 'leaves nothing behind');
    write_file("$root/odd", pack('Q<', 1000) . 'x' x 1000);
    is($import->("$root/odd", 'vm-400-disk-6', 0), "$STORE:vm-400-disk-6");
    is(scalar($PLUGIN->volume_size_info($scfg, $STORE, 'vm-400-disk-6')), 1024, 'whole sectors');
    my @formats = (['qcow2+size', undef, undef, 0], ['raw+size', 's1', undef, 0], ['raw+size', undef, undef, 1]);
    for my $asked (@formats) {
        refuses("exporting $asked->[0]", qr/not available|snapshots/, sub { $PLUGIN->volume_export($scfg, $STORE, $out, 'vm-100-disk-0', @$asked) });
        refuses("importing $asked->[0]", qr/not available|snapshots/, sub { $PLUGIN->volume_import($scfg, $STORE, $out, 'vm-400-disk-9', @$asked) });
    }
};

subtest 'what there is not is denied, and refused' => sub {
    for my $feature (qw(copy sparseinit)) {
        ok($PLUGIN->volume_has_feature($scfg, $feature, $STORE, 'vm-100-disk-0'), $feature);
        ok(!$PLUGIN->volume_has_feature($scfg, $feature, $STORE, 'vm-100-disk-0', 's1'), "$feature of a snapshot");
    }
    for my $feature (qw(snapshot clone template rename replicate)) {
        ok(!$PLUGIN->volume_has_feature($scfg, $feature, $STORE, 'vm-100-disk-0'), $feature);
    }
    my @of = ($scfg, $STORE, 'vm-100-disk-0', 's1');
    refuses('volume_snapshot', qr/does not do snapshots of image files/, sub { $PLUGIN->volume_snapshot(@of) });
    refuses('volume_snapshot_rollback', qr/does not do snapshots of image files/, sub { $PLUGIN->volume_snapshot_rollback(@of) });
    refuses('volume_rollback_is_possible', qr/does not do snapshots of image files/, sub { $PLUGIN->volume_rollback_is_possible(@of) });
    refuses('volume_snapshot_delete', qr/does not do snapshots of image files/, sub { $PLUGIN->volume_snapshot_delete(@of) });
    refuses('rename_snapshot', qr/does not do renaming/, sub { $PLUGIN->rename_snapshot(@of, 's2') });
    refuses('clone_image', qr/does not do linked clones/, sub { $PLUGIN->clone_image($scfg, $STORE, 'vm-100-disk-0', 101) });
    refuses('create_base', qr/does not do templates/, sub { $PLUGIN->create_base($STORE, $scfg, 'vm-100-disk-0') });
    refuses('rename_volume', qr/does not rename/, sub { $PLUGIN->rename_volume($scfg, $STORE, 'vm-100-disk-0', 101, undef) });
    refuses('a path of a snapshot', qr/snapshots/, sub { $PLUGIN->path(@of[0, 2, 1, 3]) });
    refuses('activating one', qr/snapshots/, sub { $PLUGIN->activate_volume($STORE, $scfg, 'vm-100-disk-0', 's1') });
    refuses('giving QEMU one', qr/snapshots/,
        sub { $PLUGIN->qemu_blockdev_options($scfg, $STORE, 'vm-100-disk-0', '10.0', { 'snapshot-name' => 's1' }) });
    is_deeply($PLUGIN->volume_snapshot_info($scfg, $STORE, 'vm-100-disk-0'), {});
    is($PLUGIN->volume_qemu_snapshot_method($STORE, $scfg, 'vm-100-disk-0'), 'storage');
};

my $pool_scfg = { %$scfg, 'hotset-pool' => 'tank' };
delete $pool_scfg->{'hotset-directory'};

subtest 'a storage on a pool' => sub {
    refuses('a directory and a pool', qr/either hotset-directory or hotset-pool/,
        sub { $PLUGIN->on_add_hook($STORE, { %$scfg, 'hotset-pool' => 'tank' }, 'hotset-token' => $token) });
    refuses('neither', qr/either hotset-directory or hotset-pool/,
        sub { $PLUGIN->on_add_hook($STORE, { 'hotset-socket' => $socket }, 'hotset-token' => $token) });
    refuses('a name that would break a path', qr/no pool's name/,
        sub { $PLUGIN->on_add_hook($STORE, { %$pool_scfg, 'hotset-pool' => 'a/b' }, 'hotset-token' => $token) });
    $PLUGIN->on_add_hook($STORE, $pool_scfg, 'hotset-token' => $token);
    ok($PLUGIN->activate_storage($STORE, $pool_scfg, {}));
    refuses('a pool that is not there', qr/pool "none"/,
        sub { $PLUGIN->activate_storage($STORE, { %$pool_scfg, 'hotset-pool' => 'none' }, {}) });
    my ($total, $avail, $used, $active) = $PLUGIN->status($STORE, $pool_scfg, {});
    ok($active && $total > 100 * $MIB && $total <= 128 * $MIB, "the room of the pool: $total bytes");
    is_deeply([$avail, $used], [$total, 0], 'all of it is free');
    isnt($PLUGIN->get_identity($pool_scfg, $STORE), $PLUGIN->get_identity($scfg, $STORE));
    is_deeply($PLUGIN->list_images($STORE, $pool_scfg), []);
};

subtest 'disks of a pool are made, used by QEMU, grown, and removed' => sub {
    is($PLUGIN->alloc_image($STORE, $pool_scfg, 500, 'raw', undef, 8 * 1024), 'vm-500-disk-0');
    is($PLUGIN->alloc_image($STORE, $pool_scfg, 500, 'raw', undef, 8 * 1024), 'vm-500-disk-1');
    refuses('a name twice', qr/exists already/, sub { $PLUGIN->alloc_image($STORE, $pool_scfg, 500, 'raw', 'vm-500-disk-0', 1024) });
    is(decode_json(hotset('volume', 'show', 'vm-500-disk-0', '--json'))->{backing}, 'pool://tank');
    is($PLUGIN->activate_volume($STORE, $pool_scfg, 'vm-500-disk-0', undef, {}, {}), 1);
    my $blockdev = $PLUGIN->qemu_blockdev_options($pool_scfg, $STORE, 'vm-500-disk-0', '10.0+pve0', {});
    qemu_io($blockdev, 'read -P 0 0 8M', 'write -P 0x5a 64k 2M', 'flush', 'read -P 0x5a 64k 2M');
    my ($first) = grep { $_->{volid} eq "$STORE:vm-500-disk-0" } $PLUGIN->list_images($STORE, $pool_scfg, 500)->@*;
    is_deeply([@$first{qw(format size vmid used)}], ['raw', 8 * $MIB, 500, 3 * $MIB], 'three slices are allocated');
    is_deeply([$PLUGIN->volume_size_info($pool_scfg, $STORE, 'vm-500-disk-0', 5)], [8 * $MIB, 'raw', 3 * $MIB, undef, undef]);
    is(($PLUGIN->status($STORE, $pool_scfg, {}))[2], 3 * $MIB);
    $PLUGIN->volume_resize($pool_scfg, $STORE, 'vm-500-disk-0', 16 * $MIB, 0);
    is(scalar($PLUGIN->volume_size_info($pool_scfg, $STORE, 'vm-500-disk-0')), 16 * $MIB);
    qemu_io($blockdev, 'read -P 0x5a 64k 2M', 'write -P 0x77 15M 1M', 'flush');
    is_deeply([$PLUGIN->volume_export_formats($pool_scfg, $STORE, 'vm-500-disk-0', undef, undef, 0)], []);
    refuses('a stream', qr/not available/,
        sub { $PLUGIN->volume_export($pool_scfg, $STORE, \*STDOUT, 'vm-500-disk-0', 'raw+size', undef, undef, 0) });
    ok($PLUGIN->volume_has_feature($pool_scfg, 'copy', $STORE, 'vm-500-disk-0'));
    is_deeply(holds($PLUGIN->list_images($STORE, $scfg, 500)), [], 'the storage of files has none of them');
    refuses('removing one of a pool there', qr/not in this storage's directory/, sub { $PLUGIN->free_image($STORE, $scfg, 'vm-500-disk-0') });
    is($PLUGIN->free_image($STORE, $pool_scfg, 'vm-500-disk-0', 0, 'raw'), undef);
    is_deeply(holds($PLUGIN->list_images($STORE, $pool_scfg)), ["$STORE:vm-500-disk-1"]);
    is(($PLUGIN->status($STORE, $pool_scfg, {}))[2], 0, 'its data is destroyed');
    is($PLUGIN->alloc_image($STORE, $pool_scfg, 500, 'raw', undef, 8 * 1024), 'vm-500-disk-0', 'the name again');
    qemu_io($blockdev, 'read -P 0 0 8M', 'write -P 3 0 1M');
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    is($PLUGIN->free_image($STORE, $pool_scfg, 'vm-500-disk-9', 0, 'raw'), undef);
    like("@warnings", qr/does not exist/, 'removing what is gone is no error');
};

subtest 'what a failure leaves in a pool is listed, and removed by a second call' => sub {
    my $images = sub { holds($PLUGIN->list_images($STORE, $pool_scfg, 600)) };
    # A removal that broke off between its steps; after a restart no volume of the pool is served.
    $PLUGIN->alloc_image($STORE, $pool_scfg, 600, 'raw', undef, 1024);
    hotset('volume', 'remove', 'vm-600-disk-0');
    is_deeply($images->(), ["$STORE:vm-600-disk-0"]);
    refuses('using it', qr/hotset volume add vm-600-disk-0 --backing pool:/,
        sub { $PLUGIN->activate_volume($STORE, $pool_scfg, 'vm-600-disk-0') });
    is($PLUGIN->alloc_image($STORE, $pool_scfg, 600, 'raw', undef, 1024), 'vm-600-disk-1', 'its name is not free');
    $PLUGIN->free_image($STORE, $pool_scfg, $_, 0, 'raw') for qw(vm-600-disk-1 vm-500-disk-0 vm-500-disk-1);
    stop_daemon();
    start_daemon();
    is_deeply($images->(), ["$STORE:vm-600-disk-0"], 'after a restart');
    is($PLUGIN->free_image($STORE, $pool_scfg, 'vm-600-disk-0', 0, 'raw'), undef);
    is_deeply($images->(), []);

    # A creation that the daemon refuses.
    my $wrong = { %$pool_scfg, 'hotset-policy' => 'write-sideways' };
    refuses('a wrong policy', qr/policy/, sub { $PLUGIN->alloc_image($STORE, $wrong, 600, 'raw', 'vm-600-disk-0', 1024) });
    is_deeply($images->(), [], 'leaves nothing');

    # A name that is served from elsewhere.
    hotset('volume', 'add', 'vm-600-disk-3', '--backing', "$root/elsewhere-600.img", '--size', '1 MiB');
    refuses('removing one of elsewhere', qr/not in pool tank/, sub { $PLUGIN->free_image($STORE, $pool_scfg, 'vm-600-disk-3') });
    refuses('a name that is served', qr/exists/, sub { $PLUGIN->alloc_image($STORE, $pool_scfg, 600, 'raw', 'vm-600-disk-3', 1024) });
    is_deeply($images->(), []);
    hotset('volume', 'remove', 'vm-600-disk-3');
};

# What QEMU writes to and expects on a disk of the pool.
sub pool_io {
    my ($name, @commands) = @_;
    return qemu_io($PLUGIN->qemu_blockdev_options($pool_scfg, $STORE, $name, '10.0+pve0', {}), @commands);
}

subtest 'features of a storage on a pool' => sub {
    my %expected = (
        copy => [1, 1, 0], sparseinit => [1, 1, 0], snapshot => [1, 0, 0], template => [1, 0, 0], clone => [0, 1, 1],
        rename => [0, 0, 0], replicate => [0, 0, 0],
    );
    for my $feature (sort keys %expected) {
        my @of = (['vm-700-disk-0'], ['base-700-disk-0'], ['vm-700-disk-0', 's1']);
        my @has = map { $PLUGIN->volume_has_feature($pool_scfg, $feature, $STORE, @$_) ? 1 : 0 } @of;
        is_deeply(\@has, $expected{$feature}, "$feature of a disk, a base image, a snapshot");
    }
};

subtest 'snapshots are made, listed, rolled back to, and deleted' => sub {
    $PLUGIN->alloc_image($STORE, $pool_scfg, 700, 'raw', 'vm-700-disk-0', 4 * 1024);
    my @disk = ($pool_scfg, $STORE, 'vm-700-disk-0');
    is_deeply($PLUGIN->volume_snapshot_info(@disk), {});
    pool_io('vm-700-disk-0', 'write -P 1 0 2M');
    is($PLUGIN->volume_snapshot(@disk, 's1'), undef);
    pool_io('vm-700-disk-0', 'write -P 2 0 1M');
    $PLUGIN->volume_snapshot(@disk, 's2');
    my $info = $PLUGIN->volume_snapshot_info(@disk);
    is_deeply([sort keys %$info], ['s1', 's2']);
    ok(abs($info->{s1}->{timestamp} - time()) < 600);
    isnt($info->{s1}->{id}, $info->{s2}->{id});
    refuses('a name twice', qr/has a snapshot 's1' already/, sub { $PLUGIN->volume_snapshot(@disk, 's1') });
    refuses('one that is not there', qr/has no snapshot 's9'/, sub { $PLUGIN->volume_rollback_is_possible(@disk, 's9') });
    refuses('a roll back to it', qr/has no snapshot 's9'/, sub { $PLUGIN->volume_snapshot_rollback(@disk, 's9') });
    is($PLUGIN->activate_volume($STORE, $pool_scfg, 'vm-700-disk-0', 's1', {}), 1);
    is($PLUGIN->deactivate_volume($STORE, $pool_scfg, 'vm-700-disk-0', 's1', {}), 1);

    pool_io('vm-700-disk-0', 'write -P 3 0 4M');
    $PLUGIN->volume_resize(@disk, 8 * $MIB, 0);
    is($PLUGIN->volume_rollback_is_possible(@disk, 's1', []), 1, 'also to one that is not the newest');
    $PLUGIN->deactivate_volume($STORE, $pool_scfg, 'vm-700-disk-0', undef, {});
    is($PLUGIN->volume_snapshot_rollback(@disk, 's1'), undef);
    pool_io('vm-700-disk-0', 'read -P 1 0 2M', 'read -P 0 2M 2M');
    is(scalar($PLUGIN->volume_size_info(@disk)), 4 * $MIB, 'with its size');
    $PLUGIN->volume_snapshot_rollback(@disk, 's2');
    pool_io('vm-700-disk-0', 'read -P 2 0 1M', 'read -P 1 1M 1M');

    is($PLUGIN->volume_snapshot_delete(@disk, 's1', 0), undef);
    is($PLUGIN->volume_snapshot_delete(@disk, 's1', 0), undef, 'a second time is no error');
    is_deeply([keys $PLUGIN->volume_snapshot_info(@disk)->%*], ['s2']);
};

subtest 'a roll back waits for the end of clients, and disconnects none' => sub {
    my @disk = ($pool_scfg, $STORE, 'vm-700-disk-0');
    my $uri = $PLUGIN->path($pool_scfg, 'vm-700-disk-0', $STORE);
    my $connect = sub {
        my ($seconds) = @_;
        unlink("$root/connected");
        my $client = fork() // die "fork: $!\n";
        if (!$client) {
            my $hold = "open('$root/connected', 'w'); import time; time.sleep($seconds)";
            exec('nbdsh', '-u', $uri, '-c', $hold) or POSIX::_exit(1);
        }
        for (1 .. 100) { last if -e "$root/connected"; sleep(0.1); }
        return $client;
    };
    pool_io('vm-700-disk-0', 'write -P 4 0 1M');
    my $client = $connect->(2);
    is($PLUGIN->volume_snapshot_rollback(@disk, 's2'), undef, 'a QEMU that is about to end');
    pool_io('vm-700-disk-0', 'read -P 2 0 1M', 'write -P 5 0 1M');
    waitpid($client, 0);
    $client = $connect->(60);
    refuses('one that stays', qr/has clients/, sub { $PLUGIN->volume_snapshot_rollback(@disk, 's2') });
    pool_io('vm-700-disk-0', 'read -P 5 0 1M');
    kill('TERM', $client);
    waitpid($client, 0);
};

subtest 'a linked clone of a snapshot outlives it' => sub {
    is($PLUGIN->clone_image($pool_scfg, $STORE, 'vm-700-disk-0', 701, 's2'), 'vm-701-disk-0');
    refuses('one of a disk', qr/base image or of a snapshot/, sub { $PLUGIN->clone_image($pool_scfg, $STORE, 'vm-700-disk-0', 701) });
    refuses('one of no snapshot', qr/has no snapshot 's9'/,
        sub { $PLUGIN->clone_image($pool_scfg, $STORE, 'vm-700-disk-0', 701, 's9') });
    {
        local $pool_scfg->{'hotset-policy'} = 'write-sideways';
        refuses('one that is refused', qr/policy/, sub { $PLUGIN->clone_image($pool_scfg, $STORE, 'vm-700-disk-0', 701, 's2') });
    }
    is_deeply(holds($PLUGIN->list_images($STORE, $pool_scfg, 701)), ["$STORE:vm-701-disk-0"], 'leaves nothing');
    pool_io('vm-701-disk-0', 'read -P 2 0 1M', 'write -P 6 0 1M');
    is($PLUGIN->free_image($STORE, $pool_scfg, 'vm-700-disk-0', 0, 'raw'), undef, 'a disk goes with its snapshots');
    is_deeply(holds($PLUGIN->list_images($STORE, $pool_scfg, 700)), []);
    pool_io('vm-701-disk-0', 'read -P 6 0 1M', 'read -P 1 1M 1M');
    $PLUGIN->free_image($STORE, $pool_scfg, 'vm-701-disk-0', 0, 'raw');
};

subtest 'a template, and linked clones of it' => sub {
    $PLUGIN->alloc_image($STORE, $pool_scfg, 800, 'raw', 'vm-800-disk-0', 4 * 1024);
    pool_io('vm-800-disk-0', 'write -P 8 0 1M');
    $PLUGIN->volume_snapshot($pool_scfg, $STORE, 'vm-800-disk-0', 's1');
    refuses('a disk with snapshots', qr/has snapshots: s1/, sub { $PLUGIN->create_base($STORE, $pool_scfg, 'vm-800-disk-0') });
    $PLUGIN->volume_snapshot_delete($pool_scfg, $STORE, 'vm-800-disk-0', 's1', 0);
    is($PLUGIN->create_base($STORE, $pool_scfg, 'vm-800-disk-0'), 'base-800-disk-0');
    is_deeply(holds($PLUGIN->list_images($STORE, $pool_scfg, 800)), ["$STORE:base-800-disk-0"]);
    is(scalar($PLUGIN->volume_size_info($pool_scfg, $STORE, 'base-800-disk-0')), 4 * $MIB);
    is($PLUGIN->activate_volume($STORE, $pool_scfg, 'base-800-disk-0', undef, {}), 1);
    my $uri = $PLUGIN->path($pool_scfg, 'base-800-disk-0', $STORE);
    is(run('nbdsh', '-u', $uri, '-c', 'print(h.is_read_only(), h.pread(512, 0)[0])'), 'True 8', 'it is read, and not written');
    is_deeply($PLUGIN->volume_snapshot_info($pool_scfg, $STORE, 'base-800-disk-0'), {}, 'its snapshot is its own affair');
    refuses('a second conversion', qr/base image already/, sub { $PLUGIN->create_base($STORE, $pool_scfg, 'base-800-disk-0') });
    refuses('a disk of its name', qr/had it before/, sub { $PLUGIN->alloc_image($STORE, $pool_scfg, 800, 'raw', 'vm-800-disk-0', 1024) });
    is($PLUGIN->alloc_image($STORE, $pool_scfg, 800, 'raw', undef, 1024), 'vm-800-disk-1');
    my @clones = map { $PLUGIN->clone_image($pool_scfg, $STORE, 'base-800-disk-0', $_) } 801, 802;
    is_deeply(\@clones, ['vm-801-disk-0', 'vm-802-disk-0']);
    pool_io('vm-801-disk-0', 'write -P 9 0 512k', 'read -P 8 512k 512k');
    stop_daemon();
    start_daemon();
    pool_io('vm-802-disk-0', 'read -P 8 0 1M', 'read -P 0 1M 3M');
    is($PLUGIN->free_image($STORE, $pool_scfg, 'base-800-disk-0', 1, 'raw'), undef, 'no clone needs its base image');
    pool_io('vm-801-disk-0', 'read -P 9 0 512k', 'read -P 8 512k 512k');
    $PLUGIN->free_image($STORE, $pool_scfg, $_, 0, 'raw') for @clones, 'vm-800-disk-1';
    is(($PLUGIN->status($STORE, $pool_scfg, {}))[2], 0, 'no space is lost');
};

subtest 'a second call finishes a conversion that broke off' => sub {
    # Ends the call at its nth change, before or after it reached the daemon. Returns false if there are fewer.
    my $break_off = sub {
        my ($change, $before, $call) = @_;
        my $ask = \&PVE::Storage::Custom::Hotset::Daemon::ask;
        no warnings 'redefine';
        my $breaking = sub {
            my $breaks = $_[2] ne 'GET' && --$change <= 0;
            die "broke off\n" if $breaks && ($before || $change < 0);
            my @answer = $ask->(@_);
            die "broke off\n" if $breaks;
            return $answer[0];
        };
        local *PVE::Storage::Custom::Hotset::Daemon::ask = $breaking;
        local *PVE::Storage::Custom::Hotset::Snapshots::ask = $breaking;
        return !defined(eval { $call->() });
    };
    my $create = sub { $PLUGIN->create_base($STORE, $pool_scfg, 'vm-900-disk-0') };
    my $breaks = 0;
    for my $before (1, 0) {
        for my $change (1 .. 20) {
            $PLUGIN->alloc_image($STORE, $pool_scfg, 900, 'raw', 'vm-900-disk-0', 2 * 1024);
            pool_io('vm-900-disk-0', 'write -P 1 0 1M');
            my $broke_off = $break_off->($change, $before, $create);
            # Until the disk is out of service the VM may run again.
            my $is_served = hotset('volume', 'list') =~ m/vm-900-disk-0/;
            pool_io('vm-900-disk-0', 'write -P 2 0 1M') if $is_served;
            if ($broke_off) {
                # The second call may break off as well.
                $break_off->($change, $before, $create);
                is(eval { $create->() } // $@, 'base-900-disk-0', "at change $change");
                $breaks++;
            }
            my $byte = $is_served ? 2 : 1;
            my $uri = $PLUGIN->path($pool_scfg, 'base-900-disk-0', $STORE);
            is(run('nbdsh', '-u', $uri, '-c', 'print(set(h.pread(1 << 20, 0)))'), "{$byte}");
            is_deeply(holds($PLUGIN->list_images($STORE, $pool_scfg, 900)), ["$STORE:base-900-disk-0"]);
            $PLUGIN->free_image($STORE, $pool_scfg, 'base-900-disk-0', 1, 'raw');
            last if !$broke_off;
        }
    }
    ok($breaks >= 12, "$breaks points");
    is(($PLUGIN->status($STORE, $pool_scfg, {}))[2], 0, 'no space is lost');
};

subtest 'disks outlive the daemon' => sub {
    stop_daemon();
    refuses('a storage that is away', qr/does not answer/, sub { $PLUGIN->status($STORE, $scfg, {}) });
    start_daemon();
    my $blockdev = $PLUGIN->qemu_blockdev_options($scfg, $STORE, 'vm-400-disk-0', '10.0+pve0', {});
    qemu_io($blockdev, 'read -P 9 0 64k', 'read -P 0x77 15M 1M');
    stop_daemon();
    rename("$images/vm-100-disk-0.raw", "$root/away") or die $!;
    start_daemon();
    refuses('one whose image is away', qr/is refused/, sub { $PLUGIN->activate_volume($STORE, $scfg, 'vm-100-disk-0') });
    is($PLUGIN->activate_volume($STORE, $scfg, 'vm-400-disk-0'), 1, 'the others are served');
};

$PLUGIN->on_delete_hook($STORE, $scfg);
ok(!-e "$root/secrets/$STORE.hotset-token", 'the token goes with the storage');

done_testing();
