#!/usr/bin/env python3
"""Every verb of the command, on small pools: output, JSON, exit status; bad input and damage."""
import itertools
import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TUTTI = os.path.abspath(os.path.join(os.environ.get("BUILD") or os.path.join(ROOT, "build"), "tutti"))
WORK = tempfile.mkdtemp(dir=os.environ.get("TUTTI_TEST_DIR"))
ENV = dict(os.environ, TUTTI_TRACES=os.path.join(ROOT, "traces"), TMPDIR=WORK, LC_ALL="C")
SMALL = ["--model", "4,2,64,2", "--block-tokens", "64", "--no-ceiling"]  # objects of 16 KiB
VERBS = ["demo", "format", "info", "ls", "lookup", "verify", "clear", "bench", "replay", "doctor", "nvme", "version", "help"]
# An instrumented build is slow, but a hang must end.
TIMEOUT_S = 100


class Skip(Exception):
    pass


def run(*args, status=0, stdin="", env=None):
    r = subprocess.run([TUTTI, *map(str, args)], capture_output=True, text=True, input=stdin, timeout=TIMEOUT_S,
                       env={**ENV, **(env or {})})
    assert r.returncode == status, f"tutti {args}: exit {r.returncode}, not {status}\n{r.stdout}\n{r.stderr}"
    return r


def run_json(*args, status=0, **more):
    return json.loads(run(*args, "--format", "json", status=status, **more).stdout)


def fails(status, *words, args, **more):
    """It fails with that status, and its message has all these words."""
    r = run(*args, status=status, **more)
    for w in words:
        assert w in r.stderr, f"tutti {args}: '{w}' is not in: {r.stderr}"
    return r


def path(name):
    return os.path.join(WORK, name)


def make_pool(name, size="64M", replay=()):
    p = path(name)
    run("format", "--size", size, p)
    if replay:
        run_json("replay", "--pool", p, *SMALL, *replay)
    return p


def test_help_has_an_example_for_each_verb():
    listing = run("help").stdout
    for v in VERBS:
        text = run(v, "--help").stdout
        assert f"$ tutti {v}" in text and "--format" in text and "Exit status" in text, text
        assert f"  {v} " in listing, listing
        assert run("help", v).stdout == text
        long = [x for x in text.split("\n") if len(x) > 80 and "$ " not in x and "|" not in x]
        assert not long, long
    assert {x["verb"] for x in run_json("help")["verbs"]} >= set(VERBS)


def test_man_pages_and_completion_come_from_the_tables():
    for v in VERBS:
        page = run("help", "--man", v).stdout
        assert page.startswith(f".TH TUTTI-{v}"), page[:80]
        assert ".SH EXAMPLE" in page and "\\-\\-format" in page
    script = run("help", "--completion").stdout

    def completed(*words):
        line = "COMP_WORDS=(tutti %s); COMP_CWORD=%d; _tutti; echo ${COMPREPLY[*]}" % (
            " ".join("'%s'" % w for w in words), len(words))
        r = subprocess.run(["bash", "-c", script + "\n" + line], capture_output=True, text=True, cwd=WORK)
        assert r.returncode == 0 and not r.stderr, r
        return r.stdout.split()
    open(path("leval.jsonl"), "w").close()
    for words, want in [
            (["form"], ["format"]), (["replay", "--metad"], ["--metadata-only"]),
            (["replay", "--trace", "l"], ["leval", "loogle", "longdocs", "leval.jsonl"]),
            (["replay", "-t", "m"], ["mooncake"]), (["replay", "--trace", "=", "m"], ["mooncake"]),
            (["replay", "--model", ""], ["llama3-8b", "qwen3-32b", "glm4-9b-1m"]), (["bench", "--rounds", ""], []),
            (["nvme", ""], ["list", "claim", "release"]), (["help", "dem"], ["demo"]), (["info", "leva"], ["leval.jsonl"]),
            (["format", "--prewrite", "="], ["segment", "all", "none"])]:
        assert sorted(completed(*words)) == sorted(want), (words, completed(*words))


def test_version():
    v = run_json("version")
    assert run("version").stdout == f"tutti {v['version']}\n"
    assert run("--version").stdout == f"tutti {v['version']}\n"


def test_mistyped_words_are_answered_with_the_nearest():
    fails(2, "Did you mean 'format'", args=["fromat"])
    fails(2, "no verb", args=["qqqqqq"])
    fails(2, "Did you mean --block-tokens", args=["replay", "--block-token5", "4"])
    fails(2, "needs a value", args=["format", "--size"])
    fails(2, "--size is given twice", args=["format", "--size", "8M", "-s", "16M", path("twice")])
    fails(2, "--format is given twice", args=["version", "--format", "json", "--format", "text"])
    fails(2, "is missing", args=["info"])
    fails(2, "takes no operands", args=["version", "x"])
    fails(2, "not one of text|json", args=["version", "--format", "yaml"])
    run(status=2)


def test_refusals_are_json_too():
    for args in [["fromat"], ["info"], ["info", "--what", "x"], ["format", "--size"], ["format", "--size", "4Q", "x"],
                 ["version", "x"], ["clear", "x"], ["replay", "--model", "gpt-9"], ["help", "fromat"]]:
        e = run_json(*args, status=2)
        assert e["exit_status"] == 2 and e["error"]["message"], e


# One table for all verbs; the man page and --help have it in words.
def test_exit_status_is_the_same_everywhere():
    empty = make_pool("empty")
    zeros = path("zeros")
    with open(zeros, "wb") as f:
        f.truncate(8 << 20)
    os.mkfifo(path("fifo"))
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path("sock"))
    not_pools = [(WORK, "folder"), (os.devnull, "character device"), (path("fifo"), "FIFO"), (path("sock"), "socket"),
                 ("/dev/none", "no device")]
    for what, word in not_pools:
        fails(3 if what == "/dev/none" else 2, word, args=["format", "--size", "8M", "--overwrite", what])
        fails(3, word, args=["replay", "--pool", what])
        if what != WORK:
            fails(3 if what == "/dev/none" else 2, word, args=["doctor", what])
    assert not os.path.exists("/dev/none")
    sock.close()
    plain = path("plain")
    open(plain, "w").close()
    for verb in ["replay", "demo", "bench"]:
        fails(3, "Not a directory", "name a folder", args=[verb, "--dir", plain])
    fails(2, "irectory", args=["lookup", "--tokens", WORK, empty])
    tokens = ["--tokens", os.devnull]
    on_pools = {"info": [], "ls": [], "verify": [], "clear": ["--all"], "lookup": tokens}
    for verb, more in on_pools.items():
        run(verb, *more, empty)  # an empty answer is one
        run_json(verb, *more, empty)
        fails(3, "none", args=[verb, *more, path("none")])
        fails(3, "no pool", args=[verb, *more, zeros])
        for what, word in not_pools:
            fails(3, word, args=[verb, *more, what])
        if verb != "info":
            more = ["--namespace", "5", *(x for x in more if x != "--all")]
            fails(2, "no namespace 5", args=[verb, *more, empty])
    for verb in ["replay", "bench"]:
        fails(3, "none", args=[verb, "--pool", path("none")])
        fails(3, "no pool", args=[verb, "--pool", zeros])
        fails(3, "No such file", args=[verb, "--dir", path("none")])
    fails(3, "No such file", "name a file", args=["lookup", "--keys", path("none"), empty])
    fails(3, "No such file", args=["format", "--size", "8M", path("none/p")])
    assert run_json("ls", empty) == {"namespace": 0, "blocks": []}
    for text in [run("help").stdout, run("ls", "--help").stdout, run("help", "--man").stdout]:
        words = " ".join(text.split())
        for w in ["0 done", "1 a finding", "2 wrong use", "3 a resource is not there"]:
            assert w in words, text


def test_a_pool_of_more_ranks_can_be_looked_at():
    p = path("ranks")
    run("format", "--size", "64M", "--ranks", "2", p)
    assert run_json("info", p)["ranks"] == 2
    for args in [["ls", p], ["verify", p], ["lookup", "--tokens", os.devnull, p], ["clear", "--all", p]]:
        run(*args)
    for args in [["replay", "--pool", p, *SMALL], ["bench", "--pool", p, "--no-ceiling"]]:
        fails(2, "2 ranks", "one rank", args=args)
        assert "more --ranks" in " ".join(run(args[0], "--help").stdout.split())


def test_a_format_that_is_cut_short():
    p = path("cut-short")
    child = subprocess.Popen([TUTTI, "format", "--size", "2G", "--prewrite", "all", p], env=ENV)
    end = time.monotonic() + 20
    while not (os.path.exists(p) and os.path.getsize(p)) and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130 and not os.path.exists(p), "an interrupted format left its file"
    with open(p, "wb") as f:  # what a killed one leaves
        f.truncate(64 << 20)
    fails(3, "no pool", "--overwrite", "cut short", args=["info", p])
    fails(2, "unfinished", "--overwrite", args=["format", "--size", "64M", p])
    run("format", "--size", "64M", "--overwrite", p)
    os.symlink("nowhere", path("dangling"))
    fails(3, "symbolic link", args=["format", "--size", "64M", path("dangling")])
    fails(2, "--size 8G", args=["format", path("sizeless")])


def test_stray_operands_are_refused_by_name():
    a, b, c = (make_pool(name, "8M") for name in ("one", "other", "third"))
    for verb in ["info", "ls", "verify"]:
        fails(3, f"{a}, {b}, {c}: ", "pool of 1 device, and 3 were given", "one pool alone", args=[verb, a, b, c])
        assert "POOL... is one pool" in " ".join(run(verb, "--help").stdout.split())
    both = [path("left"), path("right")]
    run("format", "--size", "16M", *both)
    fails(3, f"{both[0]}, {a}: device 1 belongs to another pool", args=["info", both[0], a])
    for words in ["demo x", "bench x", "replay x", "version x", "doctor . x", "help info x", "help --completion info",
                  "nvme list x", "nvme release y x", "nvme claim y z x"]:
        fails(2, f"'{words.split()[-1]}' is not taken", args=words.split())
    fails(2, "nvme claim FUNCTION SERIAL", args=["nvme", "claim", "y"])
    fails(2, "'frob' is none of list, claim, release", args=["nvme", "frob"])
    fails(2, "not both", args=["help", "--man", "--completion"])
    fails(2, "operand 1 is empty", args=["info", ""])


def told(words, text):
    """The number behind these words."""
    return text.split(words)[1].split()[0].rstrip(";,.") if words in text else None


def test_a_model_that_does_not_fit_is_told_what_would():
    r = fails(2, "and a segment of this pool has", args=["replay", "--pool", make_pool("tiny", "8M"), "--no-ceiling"])
    assert not told("segments of ", r.stderr), r.stderr
    p = make_pool("enough", told("a pool of ", r.stderr))
    run("replay", "--pool", p, "--no-ceiling", "--limit", "1", "--turns", "1")
    r = fails(2, "a pool of ", args=["replay", "--pool", make_pool("small", "64M"), "--no-ceiling"])
    run("format", "--overwrite", "--size", "64M", "--segment-size", told("segments of ", r.stderr), p)
    run("replay", "--pool", p, "--no-ceiling", "--limit", "1", "--turns", "1")


def test_a_full_disk_is_a_resource():
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30M", "tmpfs", make_dir("full")],
                                           capture_output=True).returncode:
        raise Skip("needs root, to mount a small tmpfs")
    try:
        p = path("full/p")
        run("format", "--prewrite", "none", "--size", "64M", p)
        r = run("replay", "--pool", p, *SMALL, "--fit", "60M", "--turns", "1", status=3)
        assert "writing failed" in r.stdout and "no space left" in r.stdout + r.stderr, r
    finally:
        subprocess.run(["umount", path("full")], check=True)


def make_dir(name):
    os.makedirs(path(name))
    return path(name)


def test_sizes():
    p = path("sizes")
    fails(2, "--size", args=["format", "--size", "0", p])
    for bad in ["-1", "4Q", "", "x", "1.5.2G", "1.5", "1.G", ".5G", "1.2345G"]:
        fails(2, "--size", args=["format", "--size", bad, p])
    for bad in ["99999999999999999999", "99999999999T"]:
        fails(2, "--size", "large", args=["format", "--size", bad, p])
    for size in ["1", "1K", "4096", "500K"]:
        enough = told("take ", fails(2, "too few", args=["format", "--size", size, p]).stderr)
        run("format", "--size", enough, p)
        assert run_json("info", p)["bytes"] == int(enough)
        os.unlink(p)
    fails(2, args=["format", p])
    fails(2, args=["format", "--size", "64M", "--ranks", "0", p])
    fails(2, args=["format", "--size", "64M", "--ranks", "17", p])
    assert not os.path.exists(p), "a refused format left a file"


def test_format_and_info():
    p = make_pool("info")
    assert os.stat(p).st_mode & 0o777 == 0o600
    i = run_json("info", p)
    assert i["bytes"] == 64 << 20 and i["namespaces"] == [] and i["ranks"] == 1
    assert "64MiB" in run("info", p).stdout
    fails(2, args=["format", "--size", "64M", p])
    run("format", "--size", "64M", "--overwrite", p)
    e = json.loads(fails(2, args=["format", "--size", "64M", "--format", "json", p]).stdout)
    assert e["exit_status"] == 2 and p in e["error"]["message"]
    fails(3, args=["format", "--size", "60T", path("toolarge")])
    assert not os.path.exists(path("toolarge"))


def test_replay_stores_gives_back_and_checks():
    p = make_pool("replay", "256M")
    args = ["replay", "--pool", p, *SMALL, "--fit", "16M", "--turns", "3", "--kv-memory", "8M"]
    cold = run_json(*args)
    s = cold["sum"]
    assert s["mismatched_bytes"] == 0 and s["errors"] == 0 and s["failed_blocks"] == 0
    assert s["hit_blocks"] > 0 and s["bytes_in"] == s["checked_bytes"] == s["hit_blocks"] * 4 * 2 * 16384
    assert s["bytes_out"] == s["stored_blocks"] * 4 * 2 * 16384
    assert s["requests"] == len(cold["requests"]) and s["tokens"] == sum(r["tokens"] for r in cold["requests"])
    warm = run_json(*args, "--form", "per-layer", "--prp")
    # All that can be hit is: every block but the one with the token that is always computed.
    assert warm["sum"]["stored_blocks"] == 0 and warm["sum"]["mismatched_bytes"] == 0
    assert warm["sum"]["hit_blocks"] == sum((r["tokens"] - 1) // 64 for r in warm["requests"])
    assert warm["lane"]["descriptors"] == "prp"
    text = run(*args).stdout
    assert "0 bytes differ" in text and "GB/s" in text and "CPU seconds per GB" in text


def test_replay_of_the_other_trace_models_and_orders():
    common = ["--no-ceiling", "--pool-size", "128M", "--kv-memory", "64M"]
    m = run_json("replay", "--trace", "mooncake", "--limit", "12", "--model", "2,1,64,2", "--block-tokens", "16",
                 "--concurrency", "1", *common)
    # All share the first hash id: 512 tokens. (Side by side, who comes while it is written would not hit.)
    assert m["sum"]["requests"] == 12 and m["sum"]["errors"] == 0 and m["sum"]["hit_blocks"] == 11 * 32
    for model in ["qwen3-32b", "glm4-9b-1m"]:
        x = run_json("replay", "--model", model, "--scale", "64", "--trace", "loogle", "--limit", "2", "--order",
                     "shuffled", *common)
        assert x["sum"]["requests"] == 2 and x["sum"]["mismatched_bytes"] == 0
    odd = run_json("replay", "--model", "3,1,41,2", "--block-tokens", "128", "--fit", "12M", "--turns", "3", *common)
    assert odd["object_bytes"] == 10496 and odd["sum"]["hit_blocks"] > 0
    assert odd["sum"]["mismatched_bytes"] == 0 and odd["sum"]["errors"] == 0 and odd["lane"]["bounced_bytes"] > 0
    ram = run_json("replay", *SMALL, "--controller", "model", "--fit", "12M", "--turns", "2", "--pool-size", "64M")
    assert ram["sum"]["mismatched_bytes"] == 0 and ram["sum"]["hit_blocks"] > 0


def test_replay_larger_than_the_pool_evicts_and_stays_right():
    x = run_json("replay", *SMALL, "--pool-size", "32M", "--fit", "64M", "--turns", "2", "--kv-memory", "8M")
    assert x["evicted"] > 0 and x["sum"]["mismatched_bytes"] == 0 and x["sum"]["errors"] == 0
    assert x["pool_bytes"] <= 32 << 20


def test_metadata_only_hits_what_the_trace_shares():
    x = run_json("replay", "--trace", "mooncake", "--limit", "1500", "--metadata-only", "--block-tokens", "512",
                 "--pool-size", "16T", "--requests", "none", "--concurrency", "1")
    assert x["sum"]["requests"] == 1500 and x["sum"]["errors"] == 0 and x["sum"]["hit_blocks"] > 1500
    seen, hits = set(), 0
    with lzma.open(os.path.join(ROOT, "traces/mooncake_conversation.jsonl.xz"), "rt") as f:
        lines = list(itertools.islice(f, 1500))
    for r in map(json.loads, lines):
        whole = r["hash_ids"][:r["input_length"] // 512]
        n = 0
        while n < (r["input_length"] - 1) // 512 and whole[n] in seen:
            n += 1
        hits += n
        seen.update(whole)
    assert x["sum"]["hit_blocks"] == hits, (x["sum"]["hit_blocks"], hits)


def test_metadata_only_tells_what_was_left_to_another():
    x = run_json("replay", "--trace", "mooncake", "--limit", "300", "--metadata-only", "--concurrency", "4", "--requests",
                 "none")["sum"]
    computed = x["blocks"] - x["hit_blocks"]
    told = sum(x[k + "_blocks"] for k in ["stored", "left_to_others", "no_room", "dropped", "unwritten"])
    assert x["no_room_blocks"] == x["dropped_blocks"] == x["unwritten_blocks"] == 0, x
    assert 0 <= computed - told <= x["requests"], x  # a last block may be in the pool and computed all the same


def test_plot():
    svg, png = path("p.svg"), path("p.png")
    args = ["replay", *SMALL, "--fit", "12M", "--turns", "2", "--pool-size", "64M"]
    fails(2, ".svg or .png", args=[*args, "--plot", path("p.pdf")])
    fails(3, "No such file", args=[*args, "--plot", path("none/p.svg")])  # before the work, not after it
    no_gnuplot = run(*args, "--plot", svg, env={"PATH": "/nonexistent"})
    assert "gnuplot" in no_gnuplot.stderr and "set terminal svg" in open(svg + ".gp").read()
    if not shutil.which("gnuplot"):
        raise Skip("no gnuplot on this machine")
    run(*args, "--plot", svg)
    run(*args, "--plot", png)
    assert "<svg" in open(svg).read(2000) and open(png, "rb").read(4) == b"\x89PNG"


def test_broken_traces():
    def trace(text):
        with open(path("t.jsonl"), "w") as f:
            f.write(text)
        return ["replay", "--trace", path("t.jsonl"), *SMALL, "--pool-size", "32M"]
    good = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}\n'
    fails(2, "line 3", "column", args=trace(good + good + good[:40] + "\n" + good))
    fails(2, "line 2", "600 tokens need 2", args=trace(good + good.replace("[0, 1]", "[0]")))
    fails(2, "no request", args=trace(""))
    fails(3, "no such file", args=["replay", "--trace", path("none.jsonl")])
    with open(os.path.join(ROOT, "traces/mooncake_conversation.jsonl.xz"), "rb") as f:
        start = f.read(50000)
    with open(path("cut.xz"), "wb") as f:
        f.write(start)
    fails(2, "ends too early", args=["replay", "--trace", path("cut.xz")])
    assert run_json(*trace(good + good.strip()))["sum"]["requests"] == 2


def test_replay_refuses_what_can_not_be():
    fails(2, "--kv-memory", args=["replay", "--kv-memory", "1M"])
    fails(2, "model", args=["replay", "--model", "gpt-9"])
    fails(2, "--scale", args=["replay", "--model", "1,1,1,1", "--block-tokens", "1", "--scale", "64"])
    # Objects of a single byte, in KV memory that could hold half a billion blocks.
    x = run_json("replay", "--model", "1,1,1,1", "--scale", "64", "--limit", "3", "--no-ceiling", "--pool-size", "64M")
    assert x["object_bytes"] == 1 and x["sum"]["requests"] == 3 and x["sum"]["mismatched_bytes"] == 0
    fails(2, "--concurrency", args=["replay", "--concurrency", "0"])
    fails(2, "number", args=["replay", "--rate", "-3"])
    fails(2, "--pool", args=["replay", "--metadata-only", "--pool", path("x")])
    fails(3, "none", args=["replay", "--pool", path("none"), *SMALL])


def test_ls_and_lookup():
    p = make_pool("ls", replay=["--fit", "12M", "--turns", "1"])
    blocks = run_json("ls", p)["blocks"]
    assert len(blocks) == run_json("info", p)["namespaces"][0]["committed"] > 0
    assert len(run("ls", "--limit", "3", p).stdout.split("\n")) == 4
    by_key = {b["key"]: b for b in blocks}
    chain = [max(blocks, key=lambda b: b["depth"])]
    while chain[0]["parent"]:
        chain.insert(0, by_key[chain[0]["parent"]])
    keys = "\n".join(b["key"] for b in chain)
    found = run_json("lookup", "--keys", "-", p, stdin=keys)
    assert found["matched"] == found["blocks"] == len(chain) == chain[-1]["depth"] + 1
    assert run_json("lookup", "--tokens", "-", p, stdin=" ".join(map(str, range(200))))["matched"] == 0
    # The help's own example: both ends of the pipe open the same pool, one after the other.
    pipe = f"'{TUTTI}' ls '{p}' | head -1 | cut -d' ' -f1 | '{TUTTI}' lookup --keys - '{p}'"
    r = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, env=ENV, timeout=TIMEOUT_S)
    assert r.returncode == 0 and r.stdout.startswith("1 of 1 blocks"), r
    fails(2, "word 2", args=["lookup", "--keys", "-", p], stdin=chain[0]["key"] + " zz")
    fails(2, "token id", args=["lookup", "--tokens", "-", p], stdin="1 2 4294967296")
    fails(2, "--tokens", args=["lookup", p])
    fails(2, "no namespace 7", args=["ls", "--namespace", "7", p])


def test_verify_finds_and_repairs():
    p = make_pool("verify", replay=["--fit", "12M", "--turns", "1"])
    ok = run_json("verify", p)
    assert ok["damaged"] == 0 and ok["namespaces"][0]["checked"] > 0
    content = bytearray(open(p, "rb").read())
    i = run_json("info", p)["namespaces"][0]
    # Payload lies outside header pages; flip one byte in each of many places until one is hit.
    with open(p, "r+b") as f:
        for at in range(len(content) // 2, len(content), 1 << 16):
            f.seek(at + 777)
            f.write(bytes([content[at + 777] ^ 1]))
        for at in range(1 << 20, len(content) // 2, 1 << 18):
            f.seek(at + 777)
            f.write(bytes([content[at + 777] ^ 1]))
    bad = run_json("verify", p, status=1)
    assert bad["damaged"] > 0, bad
    assert "repair" in run("verify", p, status=1).stderr
    repaired = run_json("verify", "--repair", p, status=1)
    assert repaired["repaired"] is True and repaired["damaged"] == bad["damaged"], repaired
    gone = repaired["namespaces"][0]["taken_out"]
    assert gone >= bad["damaged"], repaired
    assert run_json("verify", p)["damaged"] == 0
    after = run_json("info", p)["namespaces"][0]["committed"]
    assert after == i["committed"] - gone
    x = run_json("replay", "--pool", p, *SMALL, "--fit", "12M", "--turns", "1")  # what is left is right
    assert x["sum"]["mismatched_bytes"] == 0


def test_verify_tells_of_the_pools_own_records_once():
    p = make_pool("records", replay=["--fit", "12M", "--turns", "1"])
    model = run_json("info", p)["namespaces"][0]["model"]

    def damage(*places):
        with open(p, "r+b") as f:
            for at in places:
                f.seek(at)
                f.write(b"damage" * 20)
    damage(8192 + 300)  # the second superblock
    assert "1 superblocks or records had a damaged copy" in run("verify", p, status=1).stdout
    assert run_json("verify", p)["healed_copies"] == 0
    damage(300)  # the first one
    assert "healed" in run("info", p, status=1).stdout  # a finding, as of verify; once
    run("info", p)
    damage(16384 + 300)
    info = run_json("info", p, status=1)
    assert info["healed_copies"] == 1 and info["namespaces"][0]["model"] == model
    damage(16384 + 60 * 8192 + 300, 16384 + 60 * 8192 + 4396)  # never used
    v = run_json("verify", p, status=1)
    assert v["lost_records"] == 0 and v["healed_copies"] == 1 and v["namespaces"][0]["checked"] > 0
    damage(16384 + 300, 16384 + 4396)
    for _ in range(2):
        v = run_json("verify", p, status=1)
        assert v["lost_records"] == 1 and not v["namespaces"] and not v["wiped"]
    assert "--repair" in run("info", p, status=1).stdout
    v = run_json("verify", "--repair", p, status=1)
    assert v["lost_records"] == 1 and v["wiped"] == 1, v
    assert run_json("verify", p)["lost_records"] == 0
    assert run_json("replay", "--pool", p, *SMALL, "--fit", "12M", "--turns", "1")["sum"]["mismatched_bytes"] == 0


def test_clear():
    p = make_pool("clear", replay=["--fit", "12M", "--turns", "1"])
    fails(2, "--all", args=["clear", p])
    fails(2, "no namespace 3", args=["clear", "--namespace", "3", p])
    assert run_json("clear", "--namespace", "0", p)["blocks"] > 0
    assert run_json("ls", p)["blocks"] == []
    run("clear", "--all", p)
    assert len(run_json("info", p)["namespaces"]) == 1
    run_json("replay", "--pool", p, *SMALL, "--scale", "2", "--limit", "2")
    assert "2 namespaces removed" in run("clear", "--all", "--remove", p).stdout
    assert run_json("info", p)["namespaces"] == []
    assert run_json("replay", "--pool", p, *SMALL, "--limit", "2", "--concurrency", "1")["sum"]["errors"] == 0


def test_bench():
    args = ["bench", "--layers", "4", "--blocks", "16", "--object-size", "16K", "--no-ceiling", "--rounds", "2"]
    b = run_json(*args)
    assert b["mismatched_bytes"] == 0 and b["store"]["gbps"] > 0 and b["retrieve"]["gbps"] > 0
    p = make_pool("bench")
    run(*args, "--pool", p, "--prp", "--form", "per-layer", "--depth", "8")
    assert run_json("info", p)["namespaces"] == []
    assert "retrieve" not in run_json(*args, "--controller", "null")
    assert run_json(*args, "--controller", "model", "--in-order")["mismatched_bytes"] == 0
    huge = ["--blocks", "1048576", "--layers", "1024", "--objects", "64", "--object-size", "1G"]
    fails(2, "overflow", args=["bench", *huge])
    args[args.index("16")] = "2000"
    fails(3, "no room", args=[*args, "--pool", p])


def test_executors():
    small = ["--layers", "2", "--blocks", "4", "--object-size", "4K", "--no-ceiling", "--rounds", "1"]
    replay = [*SMALL, "--limit", "2", "--pool-size", "64M"]
    for verb, args in [("bench", small), ("replay", replay)]:
        for e in ["auto", "host"]:
            x = run_json(verb, *args, "--executor", e)
            assert "host" in x["lane"]["executor"] and x["lane"]["controller"].startswith("virt"), x["lane"]
            assert x["kv_memory"].endswith("of host memory, computed by the calling thread"), x["kv_memory"]
            text = run(verb, *args, "--executor", e).stdout
            assert x["lane"]["executor"] in text and "of host memory" in text
        # Without a GPU, or a build for one: refused, never replaced.
        fails(3, "executor cuda", "use executor host", args=[verb, *args, "--executor", "cuda"])
    fails(3, "executor cuda", "use executor host", args=["demo", "--executor", "cuda"])
    fails(2, "auto|host|cuda", args=["demo", "--executor", "tpu"])


def test_a_program_that_runs_is_no_pool():
    program = path("program")
    shutil.copy(shutil.which("sleep"), program)
    before = open(program, "rb").read()
    p = subprocess.Popen([program, "60"])
    try:
        for args in [["info"], ["ls"], ["verify"], ["clear", "--all"], ["lookup", "--tokens", os.devnull]]:
            said = fails(3, "no pool there", "a program that runs", "name another file", args=[*args, program])
            assert "--overwrite" not in said.stderr, said.stderr
        for verb in ["replay", "bench"]:
            fails(3, "a program that runs", args=[verb, "--pool", program])
        fails(2, "--overwrite", args=["format", "--size", "64M", program])
        fails(2, "a program that runs", args=["format", "--size", "64M", "--overwrite", program])
    finally:
        p.kill()
        p.wait()
    assert open(program, "rb").read() == before


def test_foreign_damaged_and_truncated_pools():
    with open(path("foreign"), "wb") as f:
        f.write(b"something else\n" * 1000)
    fails(3, "foreign", "--overwrite", args=["info", path("foreign")])
    assert open(path("foreign"), "rb").read(9) == b"something"
    fails(2, args=["format", "--size", "64M", path("foreign")])
    p = make_pool("cut")
    os.truncate(p, 20 << 20)
    fails(3, "cut", "truncated", args=["info", p])


def test_no_permission():
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        raise Skip("needs root and setpriv to become nobody")
    p = make_pool("private")
    os.chmod(WORK, 0o755)
    copy = "/tmp/tutti-test-%d" % os.getpid()
    probe = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    try:
        shutil.copy(TUTTI, copy)
        os.chmod(copy, 0o755)
        if subprocess.run([*probe, "test", "-r", WORK]).returncode:
            raise Skip("nobody can't reach the test's folder")
        for args in [["info", p], ["format", "--size", "64M", os.path.join(WORK, "new")], ["verify", p]]:
            r = subprocess.run([*probe, copy, *args], capture_output=True, text=True, env=ENV)
            assert r.returncode == 3 and "ermission" in r.stderr, r
        os.chmod(make_dir("closed"), 0o700)
        for where in [p, path("closed")]:
            r = subprocess.run([*probe, copy, "doctor", where, "--format", "json"], capture_output=True, text=True, env=ENV)
            lines = {x["name"]: x for x in json.loads(r.stdout)["lines"]}
            assert lines["access"]["state"] == lines["would be used"]["state"] == "missing", lines
            assert lines["access"]["remedy"] and "access" in lines["would be used"]["detail"], lines
    finally:
        os.unlink(copy)


def hold(p, *more):
    """A process that has the pool open, and stores into it, until it is killed."""
    holder = subprocess.Popen([TUTTI, "replay", "--pool", p, *SMALL, "--rate", "2", "--turns", "1", *more], env=ENV,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(1)  # the first one to open it should be the holder
        r = subprocess.run([TUTTI, "ls", p], capture_output=True, text=True)
        if r.returncode:
            return holder, r
        assert holder.poll() is None, "the holder could not open it"
    raise AssertionError("the holder never came in")


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_second_opener_is_told_who_has_it():
    p = make_pool("busy", "128M")
    holder, r = hold(p)
    try:
        assert r.returncode == 3 and f"process {holder.pid} on host" in r.stderr and "tutti info" in r.stderr, r
        for verb in (["verify"], ["clear", "--all"], ["lookup", "--keys", os.devnull]):
            fails(3, f"process {holder.pid} ", args=[*verb, p])
        fails(3, f"process {holder.pid} ", args=["format", "--overwrite", "--size", "64M", p])
    finally:
        end(holder)
    run("info", p)  # after a kill it opens again
    assert run_json("verify", p)["damaged"] == 0


def test_a_pool_that_is_held_is_looked_at_from_outside():
    p = make_pool("held", "128M", replay=["--fit", "12M", "--turns", "1"])
    before = run_json("info", p)
    assert before["held_by"] is None and before["namespaces"][0]["committed"] > 0
    holder, _ = hold(p)
    try:
        while not run_json("info", p)["namespaces"][0]["segments"]:
            time.sleep(0.2)
        time.sleep(1)
        holder.send_signal(signal.SIGSTOP)  # from here on all that is written is ours
        with open(p, "r+b") as f:  # a copy of a record that is damaged is not mended from outside
            f.seek(16384 + 300)
            f.write(b"damage" * 20)
        bytes_before, stat_before = open(p, "rb").read(), os.stat(p)
        held, text = run_json("info", p), run("info", p).stdout
        assert open(p, "rb").read() == bytes_before and os.stat(p).st_mtime_ns == stat_before.st_mtime_ns
        by = held["held_by"]
        assert by == {"pid": holder.pid, "host": socket.gethostname(), "lane_pid": holder.pid}, by
        assert f"process {holder.pid} on host {socket.gethostname()}" in text and "not known from outside" in text, text
        # What the records say is told; what they don't is null, never a guess.
        same = ["uuid", "version", "ranks", "devices", "bytes", "segment_bytes", "segments"]
        assert [held[k] for k in same] == [before[k] for k in same] and held["epoch"] > before["epoch"]
        unknown = {k for k, v in held.items() if v is None}
        assert unknown == {"index_bytes", "recovered_slots", "recovered_orphans", "recovered_bad", "damaged_records",
                           "healed_copies", "failed_syncs", "clean", "sync_failing"}, unknown
        ns, was = held["namespaces"][0], before["namespaces"][0]
        assert {k for k, v in ns.items() if v is None} == {"committed", "reserved", "leased", "evicted"}, ns
        assert ns["slots"] >= was["slots"] > 0 and ns["digest"] == was["digest"] and ns.keys() == was.keys()
        holder.send_signal(signal.SIGCONT)
    finally:
        end(holder)
    assert run_json("info", p, status=1)["healed_copies"] == 1  # now it is
    after = run_json("info", p)
    assert after["held_by"] is None and after["namespaces"][0]["committed"] > 0


def test_temporary_pools_go_with_the_program():
    before = set(os.listdir(WORK))
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGUSR1):
        child = subprocess.Popen([TUTTI, "replay", *SMALL, "--rate", "1", "--pool-size", "64M"], env=ENV,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while set(os.listdir(WORK)) == before and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
        child.send_signal(number)
        assert child.wait(20) == 128 + number
        assert set(os.listdir(WORK)) == before


def test_a_temporary_pool_goes_when_nobody_reads():
    before = set(os.listdir(WORK))
    child = subprocess.Popen([TUTTI, "bench", "--layers", "2", "--blocks", "4", "--object-size", "4K", "--no-ceiling",
                              "--rounds", "1"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.close()
    assert child.wait(TIMEOUT_S) == 128 + signal.SIGPIPE
    assert set(os.listdir(WORK)) == before


def test_doctor_names_the_memlock_limit():
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("prlimit"):
        raise Skip("needs root, setpriv and prlimit to become nobody with a memlock limit of 0")
    copy = "/tmp/tutti-test-memlock-%d" % os.getpid()
    try:
        shutil.copy(TUTTI, copy)
        os.chmod(copy, 0o755)
        r = subprocess.run(["prlimit", "--memlock=0:0", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                            copy, "doctor", "/tmp", "--format", "json"], capture_output=True, text=True, env=ENV)
        lines = {x["name"]: x for x in json.loads(r.stdout)["lines"]}
    finally:
        os.unlink(copy)
    if lines["io_uring"]["state"] == "ok":
        raise Skip("this kernel's rings take nothing of the memlock limit")
    assert "memlock limit (0)" in lines["io_uring"]["detail"] and "ulimit -l" in lines["io_uring"]["remedy"], lines


def test_doctor():
    d = run_json("doctor", WORK)
    names = {x["name"] for x in d["lines"]}
    assert {"io_uring", "memlock", "access", "O_DIRECT", "huge pages", "CPU", "GPU", "NVMe", "IOMMU"} <= names, names
    assert all(x["state"] in ("ok", "slower", "missing") and x["detail"] for x in d["lines"])
    assert "io_uring" in run("doctor").stdout
    fails(3, "none", args=["doctor", path("none")])


def test_doctor_where_no_pool_can_be():
    for where in ["/proc", "/sys"]:
        states = {x["name"]: x["state"] for x in run_json("doctor", where)["lines"]}
        assert states["would be used"] == "missing", (where, states)
    fails(3, "none", args=["doctor", path("none")])


def test_demo_says_that_a_folder_is_not_there():
    fails(3, "none", "No such file or directory", args=["demo", "--dir", path("none")])


def test_small_demo():
    d = run_json("demo", "--pool-size", "1G", "--plot", path("demo.svg"), "--dir", WORK)
    assert d["mismatched_bytes"] == 0 and d["recovered_blocks"] >= d["acknowledged_blocks"] > 0
    assert d["warm"]["hit_ratio_tokens"] > 0.9 and d["verified_bytes"] > 0 and not os.path.exists(d["pool"])


def main():
    counts = {"ok": 0, "not ok": 0, "skip": 0}
    for name, fn in list(globals().items()):
        if not name.startswith("test_") or sys.argv[1:] and name[5:] not in sys.argv[1:]:
            continue
        try:
            fn()
            state, why = "ok", ""
        except Skip as e:
            state, why = "skip", f" # {e}"
        except Exception:
            state, why = "not ok", ""
            print("\n".join("# " + x for x in traceback.format_exc().split("\n")))
        counts[state] += 1
        print(f"{state} {name[5:]}{why}", flush=True)
    shutil.rmtree(WORK, ignore_errors=True)
    print(f"{counts['ok']} passed, {counts['not ok']} failed, {counts['skip']} skipped")
    return counts["not ok"] != 0


sys.exit(main())
