"""An engine that plays vLLM's calls to the connector's two sides, in every order that its versions have.

A token's KV is a digest of all tokens before it, so every byte that a step computes with can be checked. Blocks are
few: requests are preempted, share prefixes, and get each other's blocks as soon as they are free.
"""
import collections
import functools
import hashlib
import itertools
import pickle
import types

from tutti.vllm.breakeven import Rates
from tutti.vllm.options import Options
from tutti.vllm.scheduler import Scheduler
from tutti.vllm.worker import Worker

SIZE = 4  # tokens in a block
LAYERS = 2
TOKEN_BYTES = 16


class Request:
    """What the connector may look at of vLLM's Request, and the engine's own notes."""

    def __init__(self, request_id, prompt, max_tokens, salt=None, skip=False, mm_features=(), prompt_embeds=None,
                 prompt_is_token_ids=None):
        self.request_id, self.cache_salt, self.skip_reading_prefix_cache = request_id, salt, skip
        self.all_token_ids, self.num_prompt_tokens = list(prompt), len(prompt)
        self.truth = list(prompt)  # with tokens that the scheduler has not seen yet
        self.digests = [repr(salt).encode()]
        self.max_tokens = max_tokens
        self.num_computed_tokens = 0
        self.placeholders = 0
        self.drafts = 0  # guessed tokens that its next step is to check
        self.unseen = 0  # guesses that were found wrong, of which the scheduler has not heard
        self.blocks = []
        self.state = "waiting"
        self.ready = False  # its load has ended
        self.lora_request, self.block_hashes = None, []
        self.mm_features, self.prompt_embeds = list(mm_features), prompt_embeds
        self.prompt_is_token_ids = prompt_is_token_ids
        self.epoch = 0  # outputs of steps of an earlier one do not count
        self.got = 0
        self.promised = 0  # loads that were promised and not reported

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    def prefix(self, n):
        """Digest of the first n tokens. (A token that is computed again comes out the same.)"""
        while len(self.digests) <= n:
            self.digests.append(hashlib.sha256(self.digests[-1] + self.input(len(self.digests) - 1)).digest())
        return self.digests[n]

    def input(self, i):
        """What the model is given at a position: an embedding, a part of an image, or a token."""
        if self.prompt_embeds is not None and i < len(self.prompt_embeds):
            if not (self.prompt_is_token_ids and self.prompt_is_token_ids[i]):
                return b"embedding" + bytes(str(self.prompt_embeds[i].tolist()), "ascii")
        for feature in self.mm_features:
            at = i - feature.mm_position.offset
            if 0 <= at < feature.mm_position.length:
                return f"{feature.identifier} {at}".encode()
        return self.truth[i].to_bytes(4, "little")


@functools.lru_cache(1 << 16)
def token_bytes(prefix, layer, rank):
    return hashlib.sha256(prefix + bytes([layer, rank])).digest()[:TOKEN_BYTES]


def kv_of(request, position, layer, rank):
    """The bytes of a token's KV."""
    return token_bytes(request.prefix(position + 1), layer, rank)


def block_bytes(request, i, rank):
    """The bytes of a request's block, all layers."""
    return b"".join(kv_of(request, p, layer, rank) for layer in range(LAYERS) for p in range(i * SIZE, (i + 1) * SIZE))


def random_of(random):
    """Another source of randomness, which takes nothing from the first."""
    return type(random)(str(random.getstate()))


class Variant:
    """How one version of vLLM behaves."""

    def __init__(self, random):
        self.apc = random.random() < 0.4  # prefix caching
        self.asynchronous = random.random() < 0.4  # a step is scheduled before the last one's output is known
        self.start_late = random.random() < 0.5  # from 0.29 on: async loads start after the forward pass
        self.no_save_when_empty = random.random() < 0.5  # to 0.28
        self.resumed_as_new = random.random() < 0.4  # model runner V2
        self.finished_first = random.random() < 0.3  # reports come before wait_for_save (speculative decoding)
        self.push = random.random() < 0.6  # has_pending_push_work is asked (from 0.24 on)
        more = random_of(random)
        self.gpu = more.random() < 0.4  # a pass is known to have ended some questions later
        self.graphs = more.random() < 0.4  # a step that only decodes replays one CUDA graph: no call for its layers
        self.drafts = more.choice([0, 0, 1, 5])  # speculative decoding: at most so many guessed tokens a step
        self.finished_first |= bool(self.drafts)


class Engine:
    """lanes: one a rank, over memories[rank][layer][block] (bytearrays)."""

    def __init__(self, random, namespace, lanes, memories, options=None, variant=None, budget=16):
        self.random, self.ns, self.memories = random, namespace, memories
        self.variant = variant or Variant(random)
        self.options = options or Options(pool=("",), recompute_break_even="off")
        self.scheduler = Scheduler(namespace, self.options, len(lanes), Rates(SIZE, 1, False),
                                   tokens_per_step=1 + self.variant.drafts, layerwise=self.options.layerwise,
                                   on_published=self._published,
                                   held_max=max(0, len(memories[0][0]) - 1 - 16))
        mark = self._mark if self.variant.gpu else None
        self.workers = [Worker(lambda digest, lane=lane: (lane, "fake"), rank, LAYERS, 1, mark=mark)
                        for rank, lane in enumerate(lanes)]
        n = len(memories[0][0])
        self.free = collections.deque(range(1, n))  # block 0 is the null block
        self.uses = [0] * n
        self.cached = {}  # prefix digest -> block
        self.hash_of = {}  # block -> prefix digest
        self.means = {}  # prefix digest -> (request, block of it)
        self.waiting, self.running, self.loading = collections.deque(), [], {}
        self.budget = budget
        self.outputs = collections.deque()  # steps carried out whose output the scheduler has not seen
        self.finished, self.lost_tail = [], 0
        self.marks = random_of(random)
        self.preemptions = self.recomputed = self.rejected = 0
        self.told = []

    def _mark(self):
        questions = itertools.count(self.marks.randrange(4), -1)
        return lambda: next(questions) <= 0

    def _published(self, track, first, n):
        self.told.append((track.request.request_id, first, n))

    # ---- blocks ----

    def _take(self):
        block = self.free.popleft()
        self.uses[block] = 1
        if self.hash_of.get(block) is not None:
            self.cached.pop(self.hash_of.pop(block), None)
        return block

    def _give(self, blocks):
        for block in reversed(blocks):
            self.uses[block] -= 1
            if not self.uses[block]:
                self.free.append(block)

    def _local_hit(self, r):
        """Blocks of the engine's own prefix cache."""
        hit = []
        if self.variant.apc and not r.skip_reading_prefix_cache:
            for i in range((r.num_tokens - 1) // SIZE):
                block = self.cached.get(r.prefix((i + 1) * SIZE))
                if block is None:
                    break
                hit.append(block)
        return hit

    def _cache(self, r, n_tokens):
        if self.variant.apc:
            for i in range(min(n_tokens, r.num_tokens) // SIZE):
                digest = r.prefix((i + 1) * SIZE)
                if digest not in self.cached:
                    self.cached[digest] = r.blocks[i]
                    self.means[digest] = (r, i)
                    self.hash_of[r.blocks[i]] = digest

    def _grow(self, r, n_tokens):
        """Room for n_tokens; None: there is none."""
        need = -(-n_tokens // SIZE) - len(r.blocks)
        if need > len(self.free):
            return None
        new = [self._take() for _ in range(max(0, need))]
        r.blocks += new
        return new

    # ---- the scheduler ----

    def add(self, request):
        self.waiting.append(request)

    def _preempt(self, r):
        self.preemptions += 1
        self._give(r.blocks)
        r.blocks, r.num_computed_tokens, r.state, r.ready = [], 0, "preempted", False
        self._void(r)
        self.running.remove(r)
        self.waiting.appendleft(r)

    @staticmethod
    def _void(r):
        """What is in flight of a request does not count: it is computed again."""
        r.truth = r.truth[:r.num_tokens]
        r.placeholders = r.drafts = r.unseen = 0
        r.epoch += 1

    def schedule(self):
        out = types.SimpleNamespace(
            scheduled_new_reqs=[], num_scheduled_tokens={}, scheduled=[], finished_req_ids=set(self.finished),
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], resumed_req_ids=set(), new_block_ids=[],
                                                        num_computed_tokens=[]))
        budget, self.sync_loads = self.budget, False
        for r in list(self.running):
            if r not in self.running:
                continue
            n = min(budget, r.num_tokens + r.placeholders + r.drafts - r.num_computed_tokens)
            # Even with all guesses wrong, what is in flight ends it.
            enough = r.placeholders and r.num_computed_tokens + 2 - r.placeholders >= r.num_prompt_tokens + r.max_tokens
            if n <= 0 or enough:
                continue
            new = self._grow(r, r.num_computed_tokens + n)
            while new is None:
                victim = next((v for v in reversed(self.running) if v is not r
                               and v.request_id not in out.num_scheduled_tokens), r)
                self._preempt(victim)
                new = None if victim is r else self._grow(r, r.num_computed_tokens + n)
                if victim is r:
                    break
            if new is None:
                continue
            budget -= n
            self._scheduled(out, r, n, new or None)
        # Those whose blocks are loaded come first, or a large request could keep them from ever going on.
        self.waiting = collections.deque(sorted(self.waiting, key=lambda w: not w.ready))
        while self.waiting and budget > 0:
            if not self._admit(out, budget):
                break
            budget = self.budget - sum(out.num_scheduled_tokens.values())
        out.total_num_scheduled_tokens = sum(out.num_scheduled_tokens.values())
        step = pickle.loads(pickle.dumps(self.scheduler.build(out)))
        for r in self.running:
            n = out.num_scheduled_tokens.get(r.request_id)
            if n:
                out.scheduled.append((r, r.num_computed_tokens - r.unseen, n))  # the worker knows better
                r.num_computed_tokens += n
                drafts = r.num_computed_tokens - r.num_tokens - r.placeholders
                if drafts >= 0:  # it will sample
                    r.placeholders += 1 + drafts
                r.drafts = self.variant.drafts if self.variant.asynchronous and drafts >= 0 else 0
        return out, step

    def _scheduled(self, out, r, n, new):
        out.num_scheduled_tokens[r.request_id] = n
        cached = out.scheduled_cached_reqs
        if r.state == "running":
            cached.req_ids.append(r.request_id)
            cached.new_block_ids.append((new,) if new else None)
            cached.num_computed_tokens.append(r.num_computed_tokens)
        elif r.state == "preempted" and not self.variant.resumed_as_new:
            cached.req_ids.append(r.request_id)
            cached.resumed_req_ids.add(r.request_id)
            cached.new_block_ids.append((list(r.blocks),))
            cached.num_computed_tokens.append(r.num_computed_tokens)
        else:
            out.scheduled_new_reqs.append(types.SimpleNamespace(
                req_id=r.request_id, block_ids=(list(r.blocks),), num_computed_tokens=r.num_computed_tokens))
        r.state = "running"

    def _admit(self, out, budget):
        """The first waiting request; False: nothing more can be admitted in this step."""
        r = self.waiting[0]
        external, later = 0, False
        if r.state == "loading":
            if not r.ready:
                self.waiting.rotate(-1)
                return any(w.state != "loading" or w.ready for w in self.waiting) and self.random.random() < 0.7
            r.ready, r.state = False, r.was
            hit = []
        else:
            hit = self._local_hit(r)
            external, later = self.scheduler.matched(r, len(hit) * SIZE)
            if self.random.random() < 0.1:
                external, later = self.scheduler.matched(r, len(hit) * SIZE)  # may be asked again
            if r.skip_reading_prefix_cache:
                assert not external
            if external is None:
                self.waiting.rotate(-1)
                return self.random.random() < 0.7
            assert external % SIZE == 0 and len(hit) * SIZE + external < r.num_tokens
        here = len(hit) * SIZE + external if not r.blocks else r.num_computed_tokens
        n = 0 if later else min(budget, r.num_tokens - here)
        for block in hit:
            if not self.uses[block]:
                self.free.remove(block)
            self.uses[block] += 1
        r.blocks += hit
        new = self._grow(r, here + n)
        if new is None:
            if not r.num_computed_tokens:
                self._give(r.blocks)
                r.blocks = []
            elif r.state != "loading":  # its load has ended; it keeps its blocks
                r.was, r.state, r.ready = r.state, "loading", True
            return False
        self.scheduler.allocated(r, list(r.blocks), external)
        if later:
            r.was, r.state, r.num_computed_tokens = r.state, "loading", here
            r.promised += 1
            return True
        self.sync_loads |= bool(external)
        self.waiting.popleft()
        r.num_computed_tokens = here
        self.running.append(r)
        self._scheduled(out, r, n, None)
        if self.variant.apc:
            self._cache(r, here + n)
        return True

    def abort(self, r):
        r.aborted = True
        if r.state == "loading" and not r.ready:
            r.gone = True
            self.waiting.remove(r)
            self.loading[r.request_id] = r
            self.scheduler.finished(r, [], "FINISHED_ABORTED")
            return
        (self.running if r in self.running else self.waiting).remove(r)
        self._end(r, "FINISHED_ABORTED")

    def _end(self, r, status):
        valid = min(r.num_computed_tokens, r.num_tokens)
        self.scheduler.finished(r, r.blocks[:-(-valid // SIZE)], status)
        self._give(r.blocks)
        r.blocks, r.state = [], status
        self.finished.append(r)

    # ---- the workers ----

    def carry_out(self, out, step):
        """The step on all ranks; returns what the engine gets to know."""
        computed = bool(out.num_scheduled_tokens)
        heard = types.SimpleNamespace(received=collections.Counter(), errors=set(), report=None)
        tokens = self._sample(out)
        for rank, worker in enumerate(self.workers):
            mine = pickle.loads(pickle.dumps(step))
            worker.begin(mine)
            late = self.variant.start_late and not self.sync_loads
            whole = self.variant.graphs and set(out.num_scheduled_tokens.values()) == {1 + self.variant.drafts}
            if not late:
                worker.start(whole)
            draft = LAYERS - 1 if self.variant.drafts else LAYERS  # the last layer is the draft model's
            self._compute(out, rank, range(draft), whole)
            if late:
                worker.start(whole)
            if self.variant.finished_first:
                self._hear(worker, heard)
                self._compute(out, rank, range(draft, LAYERS), whole)
            if computed or not self.variant.no_save_when_empty:
                worker.end()
            if not self.variant.finished_first:
                self._hear(worker, heard)
        return out, heard.received, heard.errors, heard.report, tokens

    @staticmethod
    def _hear(worker, heard):
        heard.received.update(worker.poll())
        heard.errors |= worker.errors()
        told = worker.report()
        if told is not None:
            told = pickle.loads(pickle.dumps(told))
            heard.report = told if heard.report is None else heard.report.add(told)

    def _sample(self, out):
        """The tokens that come out of a step; guesses of them that went in are right up to one, and from there wrong."""
        tokens, out.sound_end, out.rejected = {}, {}, {}
        for r, at, n in out.scheduled:
            known, guesses = len(r.truth), at + n - len(r.truth)
            right = self.random.randrange(guesses + 1) if guesses > 0 else 0
            out.sound_end[r.request_id] = min(at + n, known + right)
            if guesses < 0:
                continue
            for _ in range(1 + right):
                r.truth.append(int.from_bytes(r.prefix(len(r.truth))[:2], "big"))
            tokens[r.request_id] = r.truth[known:]
            out.rejected[r.request_id] = guesses - right
            r.unseen += guesses - right
            self.rejected += guesses - right
        return tokens

    def _compute(self, out, rank, layers, whole):
        memory, worker = self.memories[rank], self.workers[rank]
        for layer in layers if out.scheduled else ():
            if worker.layered and not whole:
                worker.wait_layer(layer)
        for r, at, n in out.scheduled:
            sound = not self.options.layerwise or all(
                memory[layer][r.blocks_then[i // SIZE]][:TOKEN_BYTES] == kv_of(r, i, layer, rank)
                for i in range(0, at, SIZE) for layer in range(layers.stop))
            for position in range(at, at + n):
                block, slot = r.blocks_then[position // SIZE], position % SIZE
                right = sound and position < out.sound_end[r.request_id]
                for layer in layers:
                    memory[layer][block][slot * TOKEN_BYTES:(slot + 1) * TOKEN_BYTES] = (
                        kv_of(r, position, layer, rank) if right else bytes(TOKEN_BYTES))  # from garbage comes garbage

    def wrong_bytes(self, out, skip):
        """Positions of the step's requests whose KV in memory is not what it should be."""
        wrong = []
        for r, at, n in out.scheduled:
            if r.request_id in skip:
                continue
            for position in range(out.sound_end[r.request_id]):
                block, slot = r.blocks_then[position // SIZE], position % SIZE
                for rank, memory in enumerate(self.memories):
                    for layer in range(LAYERS):
                        have = bytes(memory[layer][block][slot * TOKEN_BYTES:(slot + 1) * TOKEN_BYTES])
                        if have != kv_of(r, position, layer, rank):
                            wrong.append((r.request_id, position, layer, rank))
        return wrong

    # ---- outputs ----

    def update(self, result):
        out, received, errors, report, tokens = result
        failed = self._invalid(errors, out)
        for r, at, n in out.scheduled:
            if r.request_id in failed or r not in self.running or r.epoch != out.epochs[r.request_id]:
                continue
            if r.request_id in tokens and self._take_tokens(r, tokens[r.request_id], out.rejected[r.request_id]):
                self.running.remove(r)
                self._end(r, "FINISHED_LENGTH_CAPPED")
                continue
            if self.variant.apc:
                self._cache(r, min(out.sound_end[r.request_id], r.num_tokens))
        if report is not None:
            self.scheduler.update(report)
        for block in self.scheduler.take_bad_blocks():
            if self.hash_of.get(block) is not None:
                self.cached.pop(self.hash_of.pop(block), None)
        if errors and not self.outputs and self.options.layerwise:
            self._check_cached()
        for request_id, count in received.items():
            assert count <= len(self.workers), "an id was reported twice"
            self._received(request_id, count)

    def _take_tokens(self, r, tokens, rejected):
        """True: it has all that it asked for. What came beyond that is dropped."""
        r.num_computed_tokens -= rejected
        r.unseen -= rejected
        r.placeholders -= rejected + len(tokens)
        r.all_token_ids += tokens[:r.max_tokens - (r.num_tokens - r.num_prompt_tokens)]
        if not self.variant.asynchronous and self.variant.drafts:
            r.drafts = self.random.randrange(self.variant.drafts + 1)
        return r.num_tokens - r.num_prompt_tokens >= r.max_tokens

    def _check_cached(self):
        """No block that others may share has wrong bytes."""
        for digest, block in self.cached.items():
            r, i = self.means[digest]
            for rank, memory in enumerate(self.memories):
                have = b"".join(bytes(m[block]) for m in memory)
                assert have == block_bytes(r, i, rank), f"block {block} is cached and wrong"

    def _received(self, request_id, count):
        r = self.loading.get(request_id) or next((w for w in self.waiting if w.request_id == request_id), None)
        assert r is not None and r.promised, f"{request_id} was reported, but not promised"
        r.got += count
        assert r.got <= len(self.workers), "an id was reported twice"
        if r.got < len(self.workers):
            return
        r.got, r.promised = 0, r.promised - 1
        if request_id in self.loading:
            del self.loading[request_id]
            self._give(r.blocks)
            r.blocks, r.state = [], "FINISHED_ABORTED"
            self.finished.append(r)
            return
        r.ready = True
        self._cache(r, r.num_computed_tokens)

    def _invalid(self, errors, out):
        """As vLLM does: goes back to the first bad block of each request that has one."""
        if not errors:
            return set()
        failed = set()
        for r in list(self.running) + [w for w in self.waiting if w.state == "loading"]:
            n = out.num_scheduled_tokens.get(r.request_id, 0)
            done = r.num_computed_tokens - n if r in self.running else r.num_computed_tokens
            bad = next((i for i, b in enumerate(r.blocks[:-(-done // SIZE)]) if b in errors), None)
            if bad is None:
                continue
            self.recomputed += 1
            failed.add(r.request_id)
            r.num_computed_tokens = bad * SIZE
            self._void(r)
        return failed

    # ---- the loop ----

    def step(self):
        """One turn of the engine's loop."""
        out, step = self.schedule()
        out.epochs = {r.request_id: r.epoch for r, _, _ in out.scheduled}
        for r, _, _ in out.scheduled:
            r.blocks_then = list(r.blocks)
        self.finished = []
        result = self.carry_out(out, step)
        # A load that fails under a forward pass makes it compute garbage, and the next one too, if that was scheduled.
        bad = result[2].union(*(o[2] for o in self.outputs))
        wrong = self.wrong_bytes(out, {r.request_id for r, _, _ in out.scheduled if bad & set(r.blocks_then)})
        assert not wrong, f"wrong bytes: {wrong[:4]}"
        self.outputs.append(result)
        while len(self.outputs) > (1 if self.variant.asynchronous and out.num_scheduled_tokens else 0):
            self.update(self.outputs.popleft())

    def drain(self, steps_max=2000):
        """Until nothing is left to do, as an engine does that is asked for pending work."""
        for _ in range(steps_max):
            if self.idle and not self.scheduler.busy:
                return
            self.step()
        raise AssertionError(f"stuck: running {len(self.running)}, waiting {[w.state for w in self.waiting]}, "
                             f"loading {len(self.loading)}, busy {self.scheduler.busy}")

    @property
    def idle(self):
        return not (self.running or self.waiting or self.loading or self.outputs)
