#!/usr/bin/python3
"""Sessions with a Ceph cluster for scripts/rbd-axioms. As a program, `rbd_sessions.py CONF`, it is a session in a
process of its own: a line of input is a call, ["METHOD", ARGUMENT...], a line of output its result.
"""

import collections
import ctypes
import errno
import glob
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import rados
import rbd

MIB = 1 << 20
BLOCK = 4096
OBJECTS = 16
SLOTS = 512
DEPTH = 64
LONG_EXPIRY_S = 86_400
PR_SET_PDEATHSIG = 1
EXCLUSIVE = rbd.RBD_LOCK_MODE_EXCLUSIVE
RECORD = "metadata_hotset.owner"
SHUTDOWN = -errno.ESHUTDOWN
HOLD_THREAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hold-thread")


class Broken(Exception):
    """A measurement that contradicts an axiom."""


def need(condition, text):
    if not condition:
        raise Broken(text)


def name_of(code):
    return "success" if code >= 0 else errno.errorcode.get(-code, str(code))


def code_of(function, *arguments):
    """The negative error number of a call; 0 if it succeeds."""
    try:
        function(*arguments)
        return 0
    except (rados.Error, rbd.Error) as error:
        return -abs(error.errno)


def elapsed_ms(function, *arguments):
    begin = time.monotonic()
    function(*arguments)
    return (time.monotonic() - begin) * 1000


class Session:
    """A session with the cluster, with an image or the plain objects of a check. Slots are blocks of BLOCK bytes,
    spread over OBJECTS objects; each write fills a slot with its own number."""

    def __init__(self, conf, options=()):
        quiet = {"err_to_stderr": "false", "log_to_stderr": "false", "admin_socket": "", "rbd_cache": "false"}
        self.cluster = rados.Rados(conffile=conf, conf={**quiet, **dict(options)})
        self.cluster.connect()
        self.pool = self.cluster.open_ioctx("rbd")
        self.image = None
        self.prefix = None
        self.results = {}
        self.submitted = 0
        self.condition = threading.Condition()
        self.flooding = False
        self.watch = None

    def address(self):
        return self.cluster.get_addrs()

    def open(self, image):
        self.image = rbd.Image(self.pool, image)

    def use_objects(self, prefix):
        self.prefix = prefix

    def acquire(self):
        return code_of(self.image.lock_acquire, EXCLUSIVE)

    def release(self):
        return code_of(self.image.lock_release)

    def owner(self):
        owners = list(self.image.lock_get_owners())
        return owners[0]["owner"] if owners else None

    def break_lock(self, owner):
        return code_of(self.image.lock_break, EXCLUSIVE, owner)

    def header(self):
        return "rbd_header." + self.image.id()

    # Requests.

    def place(self, number):
        slot = number % SLOTS
        return slot % OBJECTS, slot // OBJECTS * BLOCK

    def submit(self, is_write=True):
        """Sends a write or a read without waiting for its end; returns its number."""
        with self.condition:
            number = self.submitted
            self.submitted += 1
        sent_at = time.monotonic()

        def finish(code):
            with self.condition:
                self.results[number] = (is_write, code, sent_at)
                self.condition.notify_all()

        index, offset = self.place(number)
        data = struct.pack("<Q", number + 1) * (BLOCK // 8)

        def finish_image(completion, _data=None):
            finish(completion.get_return_value())

        try:
            if self.image is not None and self.prefix is None:
                if is_write:
                    self.image.aio_write(data, index * 4 * MIB + offset, finish_image)
                else:
                    self.image.aio_read(index * 4 * MIB + offset, BLOCK, finish_image)
            elif is_write:
                self.pool.aio_write(f"{self.prefix}.{index}", data, offset, oncomplete=finish_image)
            else:
                self.pool.aio_read(f"{self.prefix}.{index}", BLOCK, offset, finish_image)
        except (rados.Error, rbd.Error) as error:
            finish(-abs(error.errno))
        return number

    def submit_many(self, count):
        """Every fourth request is a read."""
        return [self.submit(number % 4 != 3) for number in range(count)]

    def flood(self):
        """Keeps DEPTH requests under way until `outcome` is called."""
        self.flooding = True

        def run():
            while True:
                with self.condition:
                    self.condition.wait_for(
                        lambda: not self.flooding or self.submitted - len(self.results) < DEPTH)
                    if not self.flooding:
                        return
                self.submit(self.submitted % 4 != 3)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def outcome(self):
        """Ends the flood, and waits for all requests: [number, is it a write, code, time of sending]."""
        with self.condition:
            self.flooding = False
            self.condition.notify_all()
        with self.condition:
            done = self.condition.wait_for(lambda: len(self.results) == self.submitted, 60)
        need(done, f"{self.submitted - len(self.results)} requests do not end")
        return [[number, *result] for number, result in sorted(self.results.items())]

    def content(self):
        """All slots, each by a read of its object."""
        if self.prefix is None:
            parts = [self.image.read(index * 4 * MIB, SLOTS // OBJECTS * BLOCK) for index in range(OBJECTS)]
        else:
            parts = [self.pool.read(f"{self.prefix}.{index}", SLOTS // OBJECTS * BLOCK) for index in range(OBJECTS)]
        return parts

    def fill(self):
        for index in range(OBJECTS):
            zeroes = bytes(SLOTS // OBJECTS * BLOCK)
            if self.prefix is None:
                self.image.write(zeroes, index * 4 * MIB)
            else:
                self.pool.write_full(f"{self.prefix}.{index}", zeroes)

    def append_later(self, name):
        """Sends an append without waiting for its end; `outcome` has its result."""
        number = self.submitted
        self.submitted += 1

        def finish(completion):
            with self.condition:
                self.results[number] = (True, completion.get_return_value(), 0)
                self.condition.notify_all()

        self.pool.aio_append(name, b"late", oncomplete=finish)

    def exists(self, name):
        code = code_of(self.pool.stat, name)
        need(code in [0, -errno.ENOENT], f"a look at an object: {name_of(code)}")
        return code == 0

    # Record.

    def compare_and_write(self, name, old, new, appended=None):
        with rados.WriteOpCtx() as operation:
            operation.omap_cmp(RECORD, old, rados.LIBRADOS_CMPXATTR_OP_EQ)
            self.pool.set_omap(operation, (RECORD,), (new.encode(),))
            if appended is not None:
                operation.append(appended.encode())
            return code_of(self.pool.operate_write_op, operation, name)

    def write_record(self, name, value):
        with rados.WriteOpCtx() as operation:
            self.pool.set_omap(operation, (RECORD,), (value.encode(),))
            self.pool.operate_write_op(operation, name)

    def record(self, name):
        with rados.ReadOpCtx() as operation:
            values, _ = self.pool.get_omap_vals_by_keys(operation, (RECORD,))
            self.pool.operate_read_op(operation, name)
            return dict(values)[RECORD].decode()

    def race(self, name, rounds, me, is_appending, path):
        """Compares and writes each epoch once, begun together with another session, which shares the file of the
        progress; returns the epochs won, and unexpected codes."""
        won, odd = [], collections.Counter()
        with open(path, "r+b") as file:
            progress = mmap.mmap(file.fileno(), 16)
        for epoch in range(rounds):
            struct.pack_into("<Q", progress, 8 * me, epoch)
            while struct.unpack_from("<Q", progress, 8 * (1 - me))[0] < epoch:
                os.sched_yield()
            entry = f"{epoch:07}{me}" if is_appending else None
            code = self.compare_and_write(name, str(epoch), str(epoch + 1), entry)
            if code == 0:
                won.append(epoch)
            elif code != -errno.ECANCELED:
                odd[name_of(code)] += 1
        return [won, odd]

    # Watches and the blocklist.

    def watch_header(self, name):
        self.watch = self.pool.watch(name, lambda *_: None)

    def watch_age(self):
        """Seconds since the last ping that the OSD has answered was sent."""
        return self.watch.check().total_seconds()

    def block(self, address, seconds=LONG_EXPIRY_S):
        self.cluster.blocklist_add(address, seconds)
        self.cluster.wait_for_latest_osdmap()

    def command(self, **arguments):
        code, output, errors = self.cluster.mon_command(json.dumps({**arguments, "format": "json"}), b"")
        need(code == 0, f"{arguments}: {errors}")
        # An empty list is followed by a line of text.
        return json.JSONDecoder().raw_decode(output.decode())[0]

    def entry_s(self, address):
        """Remaining seconds of a blocklist entry; None without one."""
        for entry in self.command(prefix="osd blocklist ls"):
            if entry["addr"] == address:
                until = time.strptime(entry["until"][:19], "%Y-%m-%dT%H:%M:%S")
                return time.mktime(until) - time.mktime(time.gmtime())
        return None

    def close(self):
        if self.image is not None:
            code_of(self.image.close)
        self.pool.close()
        self.cluster.shutdown()


class Agent:
    """A session in a process of its own, which can be stopped."""

    def __init__(self, conf, image=None, objects=None):
        command = [sys.executable, os.path.abspath(__file__), conf]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.call("address")
        if image is not None:
            self.call("open", image)
        if objects is not None:
            self.call("use_objects", objects)

    def send(self, method, *arguments):
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        need(line, "the process of a session has ended")
        answer = json.loads(line)
        need("error" not in answer, answer.get("error"))
        return answer["result"]

    def call(self, method, *arguments):
        self.send(method, *arguments)
        return self.receive()

    def stop(self):
        stop_process(self.process.pid)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.kill()
        self.process.wait()

    def hold_network(self):
        """Stops the threads that send and receive: requests that are submitted later stay in the process."""
        holders = []
        for task in glob.glob(f"/proc/{self.process.pid}/task/*"):
            with open(task + "/comm") as file:
                if not file.read().startswith("msgr-worker"):
                    continue
            command = [HOLD_THREAD, os.path.basename(task)]
            holders.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        need(holders, "no thread of the network is found")
        for holder in holders:
            need(holder.stdout.readline() == "held\n", "a thread cannot be stopped")
        return holders


def release(holders):
    for holder in holders:
        holder.stdin.close()
        holder.wait()


def stop_process(pid):
    os.kill(pid, signal.SIGSTOP)
    for task in glob.glob(f"/proc/{pid}/task/*/stat"):
        while True:
            with open(task) as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    break
            time.sleep(0.001)


def serve_agent(conf):
    # Also a stopped process ends with its parent.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    session = Session(conf)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            answer = {"result": getattr(session, method)(*arguments)}
        except (Broken, rados.Error, rbd.Error, OSError) as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve_agent(sys.argv[1])
