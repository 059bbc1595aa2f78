"""An independent pairing of raw lock:contention_* events, from `perf script`, to hold lockscope's figures against.

Reads `perf script --ns -F pid,tid,cpu,time,event,trace` on standard input; arguments: the window's begin and end in
nanoseconds of the monotonic clock, and a process to leave out. Counts the waits that end in the window and prints one
JSON object {"waits": {kind: [waits, total ns]}, "inner": n}.
Written from include/trace/events/lock.h alone; shares nothing with lockscope. Must not read anything else.
"""
import json
import re
import sys

BEGIN, END, LEFT_OUT = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
LINE = re.compile(r"^\s*(\d+)/(\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+lock:contention_(begin|end):\s+(\S+)\s+\((.*)\)\s*$")


def kind_of(words):
    flags = set(words.replace("flags=", "").split("|"))
    if "MUTEX" in flags:
        return "mutex"
    if "PERCPU" in flags:
        return "percpu-rwsem"
    if "RT" in flags:
        return "rt"
    if "SPIN" in flags:
        return "rwlock" if flags & {"READ", "WRITE"} else "spin"
    return "rwsem" if flags & {"READ", "WRITE"} else "semaphore"


def main():
    begins, totals, inner = {}, {}, 0
    for line in sys.stdin:
        match = LINE.match(line)
        if not match:
            continue
        pid, tid, cpu, secs, nanos, what, lock, words = match.groups()
        now = int(secs) * 1_000_000_000 + int(nanos)
        if int(pid) == LEFT_OUT:
            continue
        # A spinning wait cannot be preempted: it is known by its CPU. The others by their task.
        task, place = ("task", int(tid), lock), ("cpu", int(cpu), lock)
        if what == "begin":
            kind = kind_of(words)
            key = place if kind in ("spin", "rwlock") else task
            if key in begins and kind == "mutex":
                continue
            begins[key] = (now, kind, is_inner(begins, key, lock, int(tid), int(cpu)))
            continue
        key = place if place in begins else task
        if key not in begins:
            continue
        start, kind, is_part = begins.pop(key)
        if is_part:
            inner += 1
            continue
        if "ret=0" not in words or not BEGIN <= now <= END:
            continue
        waits = totals.setdefault(kind, [0, 0])
        waits[0] += 1
        waits[1] += now - start
    print(json.dumps({"waits": totals, "inner": inner}))


# Sizes of struct mutex, rw_semaphore, semaphore, qrwlock on a kernel without lock debugging (include/linux/*.h).
SIZES = {"mutex": 32, "rwsem": 40, "semaphore": 24, "rwlock": 8, "percpu-rwsem": 96}


def is_inner(begins, key, lock, tid, cpu):
    """Whether the lock lies inside one that the same context waits for already: part of that wait."""
    address = int(lock, 16)
    for (place, number, outer), (_, kind, _) in begins.items():
        if (place, number) not in (("task", tid), ("cpu", cpu)) or (place, number, outer) == key:
            continue
        if 0 <= address - int(outer, 16) < SIZES.get(kind, 0):
            return True
    return False


main()
