"""Fills a step: who computes how much, who enters, who must give way.

Owns the running and the waiting sequences and their order. Knows pages through `Memory`; no events,
no sampling results.
"""

from collections.abc import Collection, Iterator, Sequence

from radixgen.cache.radix import Match
from radixgen.config import ScheduleConfig
from radixgen.errors import RadixgenError
from radixgen.schedule.forks import Forks
from radixgen.schedule.marks import MIN_SHARED_TOKENS, Depths, Marks
from radixgen.schedule.memory import Memory
from radixgen.schedule.outputs import StopRules
from radixgen.schedule.policy import make_queue
from radixgen.schedule.request import Drafter, Request, SequenceState, Status
from radixgen.schedule.shares import is_shorter, nested, shares
from radixgen.schedule.step import Step, total_pages_missing

MAX_DRAFTS = 32  # a sequence and step
MAX_AHEAD = (
    32  # steps planned ahead in a row while somebody waits, whom time may have brought forward
)
MAX_LOOKS = 256  # waiting sequences looked at in one step, so that no queue makes a step slow


class Planner:
    """The running sequences, the queue, and the rules between them."""

    def __init__(self, config: ScheduleConfig, memory: Memory, rules: StopRules) -> None:
        self.config = config
        self.memory = memory
        self.rules = rules
        self.max_running = min(config.max_running, config.max_step_tokens)
        self.running: list[SequenceState] = []  # in order of entry
        self.forks = Forks()  # of admitted requests; they enter first
        self.min_shared_tokens = MIN_SHARED_TOKENS
        self.drafter: Drafter | None = None
        self.marks = Marks(memory.page_size)
        self.queue = make_queue(config, self.marks)
        self.counters: dict[str, float] = {"preemptions": 0, "held_twins": 0}
        self.started: set[Request] = set()  # open requests that have entered
        self._lingering: list[SequenceState] = []  # finished, their pages awaited by their forks
        self._failed: list[tuple[SequenceState, Exception]] = []
        self._improved: dict[SequenceState, None] = {}  # to get a better place in the queue
        self._has_changed = False  # since the last look at who may enter
        self._num_ahead = 0  # steps since then
        self._holds_twins = self.queue.holds_twins and memory.cache.can_match

    # ---- waiting ----

    def wait(self, sequence: SequenceState) -> None:
        """Put a sequence into the queue."""
        sequence.status = Status.WAITING
        self._has_changed = True
        if self.queue.uses_matches:
            sequence.matched = self.memory.find(sequence).num_tokens
        if self.queue.holds_twins:
            self.marks.enrol(sequence)
        self.queue.push(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.forks or len(self.queue) or self._improved)

    def remove(self, sequence: SequenceState, status: Status) -> None:
        """Take out a sequence that waited, wherever it did."""
        if status is Status.HELD:
            self.marks.unhold(sequence)
        elif status is Status.WAITING and not self.forks.discard(sequence):
            self.queue.discard(sequence)
        self._improved.pop(sequence, None)
        self._improve(self.marks.withdraw(sequence))

    def stop(self, sequence: SequenceState, *, keep: bool, final: bool) -> None:
        """A running sequence gives up its pages and its place."""
        place = self._lingering if sequence in self._lingering else self.running
        place.remove(sequence)
        self._has_changed = True
        self.memory.leave(sequence, keep=keep, final=final)
        self._improve(self.marks.withdraw(sequence))

    def finish(self, sequence: SequenceState) -> None:
        """As `stop`, but the pages stay a while when forks are still to share them."""
        if self._is_awaited(sequence):
            self.running.remove(sequence)
            self._lingering.append(sequence)
            self._improve(self.marks.withdraw(sequence))
        else:
            self.stop(sequence, keep=True, final=True)

    def _is_awaited(self, sequence: SequenceState) -> bool:
        return sequence.index == 0 and self.forks.awaits(sequence.request)

    def _settle(self, *, all_of_them: bool = False) -> bool:
        """Let go of finished sequences that no fork awaits any more; True when there were any."""
        going = [seq for seq in self._lingering if all_of_them or not self._is_awaited(seq)]
        for sequence in going:
            self.stop(sequence, keep=True, final=True)
        return bool(going)

    def take_failed(self) -> list[tuple[SequenceState, Exception]]:
        """Sequences whose own callables raised while the step was planned."""
        failed, self._failed = self._failed, []
        return failed

    def progressed(self, sequence: SequenceState) -> None:
        """A running sequence has put computed pages into the tree."""
        self._improve(self.marks.progress(sequence))
        if sequence.num_left <= 1:
            self._improve(self.marks.withdraw(sequence))

    def _improve(self, depths: Depths) -> None:
        for sequence, depth in depths.items():
            if sequence.status is Status.WAITING:
                sequence.matched = max(sequence.matched, min(depth, sequence.max_match))
                self._improved[sequence] = None

    # ---- one step ----

    def plan(self, now: float) -> Step:
        step = Step(self.config.max_step_tokens)
        self._settle()
        decoding = [seq for seq in self.running if seq.is_decoding]
        prefilling = [seq for seq in self.running if not seq.is_decoding]
        decoding.sort(key=_seniority)
        for sequence in decoding:
            if sequence.status is Status.RUNNING and self._make_room(sequence, step):
                step.add(sequence, 1)
        self._replace()
        self._prefill(prefilling, step, now)
        self._admit(step, now)
        self._draft(step)
        return step

    def _prefill(self, prefilling: list[SequenceState], step: Step, now: float) -> None:
        going = [seq for seq in prefilling if seq.status is Status.RUNNING]
        left = [seq.num_left for seq in going]
        if sum(left) > step.left and not step.preempted:
            self._admit_shorter(left, step, now)
        for sequence, share in zip(going, shares(left, step.left), strict=True):
            self._continue(sequence, step, share)
        if step.rows:
            return
        for sequence in sorted(going, key=_seniority):  # all are short of pages
            if sequence.status is Status.RUNNING and self._make_room(sequence, step):
                self._continue(sequence, step, step.left)
                return

    def _admit_shorter(self, left: list[int], step: Step, now: float) -> None:
        """Let those enter who need not wait for the prompts of which `left` tokens are to be
        computed, into what these leave to them."""
        places = nested(left)
        kept = step.left - (step.left >> len(places))
        step.left -= kept
        self._admit_some(step, now, than=left[places[-1]])
        step.left += kept

    def _continue(self, sequence: SequenceState, step: Step, limit: int) -> None:
        num_tokens = self.memory.grow(sequence, min(sequence.num_left, limit))
        if num_tokens > 0:
            step.add(sequence, num_tokens)

    def _draft(self, step: Step) -> None:
        """Guesses take what is left of the budget and of the pages, and push nobody out."""
        left, num_rows = step.left, len(step.rows)
        guesses: dict[SequenceState, Sequence[int]] = {}
        for sequence, row in step.rows.items():
            if row.num_given:  # it tells of given tokens, which drafts are not
                continue
            limit = min(left, self.rules.max_drafts(sequence), MAX_DRAFTS)
            if limit <= 0 or not row.samples or sequence.law or sequence.is_thinking:
                continue
            try:
                guess = self._guess(sequence, limit, num_rows)[:limit]
            except Exception as error:  # the request's own
                self._failed.append((sequence, error))
                continue
            if guess:
                guesses[sequence] = guess
                left -= len(guess)
        if self.drafter is not None:
            asked = [sequence for sequence in guesses if sequence.request.propose is None]
            if asked and not self.drafter.pays(asked, num_rows):
                for sequence in asked:
                    del guesses[sequence]
        for sequence, drafts in guesses.items():
            num_tokens = step.rows[sequence].num_tokens
            room = self.memory.grow(sequence, num_tokens + len(drafts)) - num_tokens
            step.add_drafts(sequence, list(drafts[: max(room, 0)]))

    def _guess(self, sequence: SequenceState, limit: int, num_rows: int) -> Sequence[int]:
        """By the request's own proposer if it has one, else by the runtime's."""
        if sequence.request.propose is not None:
            return sequence.request.propose(sequence.tokens, limit)
        if self.drafter is not None:
            return self.drafter.propose(sequence, limit, num_rows)
        return ()

    def foresees(self, sequence: SequenceState, num_rows: int) -> bool:
        """Whether guesses of what follows a token are worth waiting until that is drawn."""
        limit = min(self.rules.max_drafts(sequence), MAX_DRAFTS)
        if limit <= 0 or sequence.law or sequence.is_thinking:
            return False
        if self.drafter is None or sequence.request.propose is not None:
            return sequence.request.propose is not None
        try:
            return self.drafter.foresees(sequence, limit, num_rows)
        except Exception:  # the request's own, to be met again when the step is planned
            return True

    def jump(self, sequence: SequenceState) -> Sequence[int]:
        """Tokens that follow for certain and need no verification. Log-probabilities that are
        wanted need one, as does a law of its own."""
        sampling = sequence.request.sampling
        wanted = sampling.logprobs is not None or sampling.grammar_mass
        if self.drafter is None or wanted or sequence.law or sequence.is_thinking:
            return ()
        return self.drafter.jump(sequence, self.rules.max_drafts(sequence))

    # ---- giving way ----

    def _make_room(self, sequence: SequenceState, step: Step) -> bool:
        """Pages for one more token, at others' cost if need be; False when it is the one to go."""
        while self.memory.grow(sequence, 1) < 1:
            if self._settle(all_of_them=True):
                continue
            victim = self._victim(sequence)
            step.preempted = True
            self.preempt(victim, step)
            if victim is sequence:
                return False
        return True

    def _victim(self, sequence: SequenceState) -> SequenceState:
        """The lowest priority first, then whose return costs least. Those preempted often enough
        are immune; when all are, the last to arrive goes, so that the first always finishes."""
        if self.running == [sequence]:
            raise RadixgenError(f"{sequence.request.rid} alone needs more pages than there are")
        limit = self.config.max_preemptions
        soft = [seq for seq in self.running if seq.num_preemptions < limit]
        if soft:
            return min(soft, key=self._loss)
        return max(self.running, key=_seniority)

    def _loss(self, sequence: SequenceState) -> tuple[float, ...]:
        request = sequence.request
        lost = self.memory.unshared_tokens(sequence)
        return (request.priority, lost, -request.order, -sequence.index)

    def preempt(self, victim: SequenceState, step: Step) -> None:
        """Out of the step, the pages into the tree, back into the queue."""
        step.drop(victim)
        self.stop(victim, keep=True, final=False)
        victim.num_preemptions += 1
        self.counters["preemptions"] += 1
        self.wait(victim)

    # ---- entering ----

    def _replace(self) -> None:
        """Give better places to those whose prefix came into the tree, some in each step."""
        for _ in range(min(len(self._improved), MAX_LOOKS)):
            sequence = next(iter(self._improved))
            del self._improved[sequence]
            self.queue.push(sequence)

    def may_admit(self) -> bool:
        """Whether somebody might enter if a step were planned anew. Asked before each step that is
        planned ahead instead."""
        if self.forks or self._improved or self._lingering:
            return True
        self._num_ahead += 1
        return len(self.queue) > 0 and (self._has_changed or self._num_ahead > MAX_AHEAD)

    def _admit(self, step: Step, now: float) -> None:
        self._num_ahead = 0
        if not step.preempted:
            self._admit_some(step, now)
        self._has_changed = step.preempted or step.left <= 0 or bool(step.copies)

    def _admit_some(self, step: Step, now: float, than: int | None = None) -> None:
        """`than`: only prompts that are shorter, and nobody gives way to them."""
        displaces = self.config.policy == "priority" and than is None
        missing = total_pages_missing(self.running, self.memory.page_size)
        for sequence, match in self._candidates(step, now):
            known = sequence.max_match if match is None else match.num_tokens
            if than is not None and not is_shorter(sequence.num_known - known, than):
                return
            while not self._enter(sequence, match, step, missing, now):
                settled = not step.copies and self._settle(all_of_them=True)
                if not settled and not (displaces and self._displace(sequence, step)):
                    return
                match = self.memory.find(sequence)
                missing = total_pages_missing(self.running, self.memory.page_size)
            missing += total_pages_missing((sequence,), self.memory.page_size)

    def _candidates(self, step: Step, now: float) -> Iterator[tuple[SequenceState, Match | None]]:
        """Who should enter next, again and again. A match of None: fork from the first choice.

        Forks go first, for their pages are here; but while others wait only into half of what is
        left of tokens and of rows, so that a thousand continuations hold up nobody."""
        looks = 0
        kept_tokens = step.left // 2 if len(self.queue) else 0
        kept_rows = (self.max_running - len(self.running)) // 2 if len(self.queue) else 0
        while (
            self.forks
            and step.left > kept_tokens
            and self.max_running - len(self.running) > kept_rows
        ):
            yield (fork := self.forks.first()), self._fork_match(fork)
        while looks < MAX_LOOKS and (sequence := self.queue.peek(now)) is not None:
            looks += 1
            match = self.memory.find(sequence)
            if self.queue.uses_matches and match.num_tokens < sequence.matched:
                sequence.matched = match.num_tokens  # evicted since: it may not be its turn
                self.queue.push(sequence)
            elif self._is_twin(sequence, match):
                sequence.matched = match.num_tokens
                self.counters["held_twins"] += 1
                self.queue.discard(sequence)
                self._improved.pop(sequence, None)
                self.marks.hold(sequence)
            else:
                yield sequence, match
        while self.forks:
            yield (fork := self.forks.first()), self._fork_match(fork)

    def _fork_match(self, child: SequenceState) -> Match | None:
        parent = child.request.sequences[0]
        if parent.node is not None and parent.num_computed >= child.max_match:
            return None
        return self.memory.find(child)

    def _is_twin(self, sequence: SequenceState, match: Match) -> bool:
        if not self._holds_twins:
            return False
        depth = self.marks.leader_depth(sequence)
        return min(depth, sequence.max_match) - match.num_tokens >= self.min_shared_tokens

    def _enter(
        self, sequence: SequenceState, match: Match | None, step: Step, missing: int, now: float
    ) -> bool:
        """Start a sequence if budget, rows and pages allow. Its whole prompt must find pages, with
        one to spare for each sequence that runs, so that entering does not lead to preemption."""
        memory = self.memory
        if step.left <= 0 or len(self.running) >= self.max_running or not memory.num_open:
            return False
        known = memory.pages_for(sequence.num_known)
        if match is None:
            needed = known - sequence.max_match // memory.page_size
        else:
            needed = known - len(match.page_ids) + memory.unlocked_pages(match)
        spare = memory.num_available - needed
        if spare < (missing + len(self.running) if self.running else 0):
            return False
        cached = self._start(sequence, match, step, spare)
        request = sequence.request
        if request.first_scheduled is None:
            request.first_scheduled = now
            request.cached_tokens = cached
            self.started.add(request)
        return True

    def _start(self, sequence: SequenceState, match: Match | None, step: Step, spare: int) -> int:
        """Into the running ones and into the step; returns the tokens it need not compute."""
        if self.forks and self.forks.first() is sequence:
            self.forks.enter(sequence)
        else:
            self.queue.enter(sequence)
            self._improved.pop(sequence, None)
        if match is None:
            copy = self.memory.fork(sequence, sequence.request.sequences[0])
        else:
            self.memory.enter(sequence, match)
            copy = self.memory.copy_tail(sequence, match, spare)
        if copy is not None:
            step.copies.append(copy)
        cached = sequence.num_computed
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        step.entered.add(sequence)
        self._continue(sequence, step, step.left)
        if self._holds_twins and sequence.num_left > 1:
            self.marks.lead(sequence)
        else:
            self._improve(self.marks.withdraw(sequence))
        return cached

    def _displace(self, sequence: SequenceState, step: Step) -> bool:
        """Under the priority policy, someone of lower priority makes way; nobody who entered in
        this step, nor whose page a fork that did is about to copy."""
        priority, limit = sequence.request.priority, self.config.max_preemptions
        busy = {seq.request for seq in step.entered}
        lower = [
            seq
            for seq in self.running
            if seq.request.priority < priority
            and seq.num_preemptions < limit
            and seq.request not in busy
        ]
        if not lower:
            return False
        self.preempt(min(lower, key=self._loss), step)
        return True

    def check(self, leaving: Collection[SequenceState] = ()) -> None:
        """Raises AssertionError unless each sequence is where its status says. `leaving`: those
        that are over, and whose pages a step under way uses."""
        self.memory.check([*self.running, *self._lingering])
        assert all(seq.status is Status.RUNNING or seq in leaving for seq in self.running)
        assert all(seq.status is Status.WAITING for seq in self.queue)
        assert len(self.running) <= self.max_running


def _seniority(sequence: SequenceState) -> tuple[int, int, int]:
    request = sequence.request
    return (-request.priority, request.order, sequence.index)
