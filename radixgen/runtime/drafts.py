"""Guesses of what follows, to be verified in one pass: text a grammar forces, text seen before.

    known tokens -> forced by the grammar?  its bytes, spelled as the tokenizer would  -> drafts
                 -> seen before here?       what followed there, as far as it fits     -> drafts
                 -> in other outputs?       what they went on with, as far as it fits  -> drafts

A guess changes the number of steps, never a token: the runner draws at every position what it would
have drawn anyway and keeps the drafts that equal it. So this module may guess as it likes, and it
weighs what a guess costs (a row of the step, measured) against its chance (measured too, by kind).
Knows sequences, matchers and a tokenizer; no tensors and no pages.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from radixgen.config import JumpForward
from radixgen.grammars.matcher import GrammarMatcher
from radixgen.runtime import suffixes
from radixgen.runtime.costs import StepCosts
from radixgen.runtime.spelling import MAX_TAIL, Habits, Speller, Text
from radixgen.runtime.suffixes import Recent, Shelf
from radixgen.schedule.request import SequenceState

MAX_FORCED = 400  # bytes of it looked at in one step
MAX_COPY = 16  # tokens copied from one place
MAX_SEARCHED = 1 << 15  # last tokens of a text in which earlier ones are sought


class Kind(IntEnum):
    """Where a guess comes from; each has its own record of success."""

    FORCED = 0  # spells text that the grammar forces
    EDGE = 1  # the last token of such text, which may merge with what follows
    HABIT = 2  # how the model itself spelled the same text the last time
    COPY_LONG = 3  # followed the same LONG tokens before
    COPY_SHORT = 4  # followed the same SHORT tokens before
    KIN_LONG = 5  # followed the same tokens in other outputs of the same kind
    KIN_SHORT = 6  # likewise, but fewer of them


LONG, SHORT = 4, 2
_PRIORS = (0.9, 0.6, 0.9, 0.6, 0.3, 0.6, 0.4)  # by kind
_SEEN_HERE: tuple[Kind, ...] = (Kind.COPY_LONG, Kind.COPY_SHORT)
_SEEN_ELSEWHERE: tuple[Kind, ...] = (Kind.KIN_LONG, Kind.KIN_SHORT)
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.98  # of a record, kept with each further guess
_LEAST_TRUST = 0.5
_PATIENCE = 64  # steps or guesses not worth their rows before some are tried all the same
_MAX_TRIED = 2  # drafts of a sequence then
_LONGEST_REST = 8  # steps that go by without, where drafts have not paid again and again


@dataclass(slots=True)
class Chance:
    """How often guesses of a kind were right of late, starting from a belief."""

    prior: float
    right: float = 0.0
    tried: float = 0.0
    passed_over: int = 0

    @property
    def rate(self) -> float:
        return (self.right + _PRIOR_WEIGHT * self.prior) / (self.tried + _PRIOR_WEIGHT)

    def count(self, right: float, tried: float = 1.0) -> None:
        self.right = _MEMORY * self.right + right
        self.tried = _MEMORY * self.tried + tried

    def pass_over(self) -> bool:
        """A guess was not worth making; True when one is due all the same, to see if it is now."""
        self.passed_over = (self.passed_over + 1) % _PATIENCE
        return self.passed_over == 0


Chances = tuple[list[Chance], list[Chance]]
"""By kind: of greedy outputs, which often write what was seen before, and of others."""


def _beliefs() -> Chances:
    return [Chance(prior) for prior in _PRIORS], [Chance(prior) for prior in _PRIORS]


@dataclass(slots=True)
class Memory:
    """What is remembered of a sequence: its own record and that of its kin, the kinds of its last
    drafts, how much of it its kin know, and where forced text began that is not all written yet."""

    chances: list[Chance]
    is_drawn: bool  # not greedy
    kin: "Kin"
    num_told: int
    kinds: list[Kind] = field(default_factory=list)
    hopes: list[float] = field(default_factory=list)  # of those drafts: the chance of each
    rest: int = 0  # guesses not to be made, as those of the whole batch did not pay
    is_trial: bool = False  # whether the last drafts were made only to see if they are right
    owes_trial: bool = False
    forced_at: int = 0
    forced: bytes = b""


@dataclass(slots=True)
class Kin:
    """Outputs of one kind: what they wrote, and how often guesses from it were right."""

    shelf: Shelf = field(default_factory=Shelf)
    chances: Chances = field(default_factory=_beliefs)


def kin_key(sequence: SequenceState) -> Hashable:
    """What outputs have in common that are taken to be alike."""
    request, matcher = sequence.request, sequence.matcher
    spec = matcher.grammar.spec if isinstance(matcher, GrammarMatcher) else None
    return request.namespace, spec, request.hint.program if request.hint else ""


class Drafter:
    """See `radixgen.schedule.request.Drafter`. `jump_forward` drafts text that a grammar forces, or
    hands it out to be taken unverified ("fast"); `prompt_lookup` drafts what followed the same
    tokens before, in prompt or output (A. Saxena, Prompt Lookup Decoding, 2023), `suffix_drafts`
    what followed them in other outputs of the kind."""

    def __init__(
        self,
        text: Text,
        *,
        jump_forward: JumpForward = "exact",
        prompt_lookup: bool = True,
        suffix_drafts: bool = True,
    ) -> None:
        self.costs = StepCosts()
        self.chances = _beliefs()
        # Right drafts, of as many as their chances say: of greedy outputs, and of others.
        self.trust = (Chance(1.0), Chance(1.0))
        self._idle = 0.0  # steps that no guess was thought worth making in
        self._in_trial = False  # guesses are made all the same, until some have been verified
        self._rest = 1  # steps to go without when drafts do not pay
        self.verified = [0] * len(Kind)
        self.accepted = [0] * len(Kind)
        self._speller = Speller(text)
        self._habits = Habits(text)
        self._jump_forward = jump_forward
        self._prompt_lookup = prompt_lookup
        self._kin = Recent(Kin) if suffix_drafts else None

    def propose(self, sequence: SequenceState, limit: int, num_rows: int) -> list[int]:
        """At most `limit` tokens that are worth a row each in a step of `num_rows` sequences."""
        memory = self._memory(sequence)
        self._note_habit(memory, sequence.tokens)
        self._tell_kin(memory, sequence.tokens)
        least = self._least_chance(num_rows, memory)
        memory.kinds, memory.hopes = [], []
        limit = min(limit, _MAX_TRIED) if self._in_trial else limit
        if memory.rest > 0:
            memory.rest -= 1
            return []
        # Looking for guesses costs as well: not where none could be worth making, but now and then.
        hopes = memory.chances if sequence.matcher is not None else memory.chances[Kind.COPY_LONG :]
        is_trial = max(chance.rate for chance in hopes) < least
        if is_trial and not memory.owes_trial:
            self._go_without(1 / num_rows)
            if not self._in_trial:
                return []
        is_jumping = self._jump_forward == "fast"
        guess = _Guess(sequence, limit, least, memory, is_trial or memory.owes_trial, is_jumping)
        while self._extend(guess):
            pass
        memory.kinds, memory.hopes, memory.owes_trial = guess.kinds, guess.hopes, False
        memory.is_trial = guess.is_trial
        return guess.drafts

    def _go_without(self, num_steps: float) -> None:
        """Count steps without guesses. When they are many, some are made although they are not
        worth it, to see if they are now: in all sequences of one step, as the first guess of a step
        may cost more than the next."""
        self._in_trial = self._in_trial or self._idle >= _PATIENCE
        self._idle += num_steps

    def pays(self, sequences: Sequence[SequenceState], num_rows: int) -> bool:
        """Whether what was proposed last for `sequences`, together, is worth the rows it adds to a
        step of `num_rows`. When it is not, some steps go by without."""
        memories = [self._memory(sequence) for sequence in sequences]
        num_drafts = sum(len(memory.hopes) for memory in memories)
        num_right = sum(self._trust(memory) * sum(memory.hopes) for memory in memories)
        if self.costs.pays(num_rows, num_drafts, num_right):
            self._rest = 1
            return True
        if self._in_trial:
            return True
        self._go_without(1 + self._rest)
        for memory in memories:
            memory.rest = self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)
        return False

    def _trust(self, memory: Memory) -> float:
        return min(max(self.trust[memory.is_drawn].rate, _LEAST_TRUST), 1.0)

    def _least_chance(self, num_rows: int, memory: Memory) -> float:
        """How likely a draft must be to pay, by chances that take guesses to be right one by one.
        They go wrong together, where text is over that was sure: so fewer are right."""
        return self.costs.least_chance(num_rows) / self._trust(memory)

    def foresees(self, sequence: SequenceState, limit: int, num_rows: int) -> bool:
        """Whether there will be drafts behind the next token. Trials, which are due now and then,
        are not worth waiting for; they are made up for when there is a choice again."""
        drafts, memory = self.propose(sequence, limit, num_rows), self._memory(sequence)
        memory.owes_trial = len(drafts) > 0 and memory.is_trial
        return len(drafts) > 1 and not memory.is_trial

    def jump(self, sequence: SequenceState, limit: int) -> list[int]:
        """Forced text as the tokenizer spells it, up to where its last token might merge with what
        follows, if all of it leaves enough tokens to complete the text."""
        if self._jump_forward != "fast" or not isinstance(sequence.matcher, GrammarMatcher):
            return []
        path, tokens = sequence.matcher.fork(), list[int]()
        forced = path.forced_bytes()[:MAX_FORCED]
        for token in self._speller.spell(sequence.tokens, forced) if forced else ():
            if len(tokens) == limit or not path.accept_token(token):
                break
            tokens.append(token)
        if tokens and not path.is_finished():
            path.rollback(1)
            tokens.pop()
        return tokens if path.shortest_completion() <= limit + 1 - len(tokens) else []

    def learn(self, sequence: SequenceState, drafts: Sequence[int], num_accepted: int) -> None:
        """Count the accepted drafts and the first refused one; those behind it say nothing."""
        memory = self._memory(sequence)
        self._in_trial, self._idle = False, 0.0
        self.trust[memory.is_drawn].count(num_accepted, sum(memory.hopes[: len(drafts)]))
        is_drawn = memory.is_drawn
        records = (self.chances[is_drawn], memory.chances, memory.kin.chances[is_drawn])
        for place, kind in enumerate(memory.kinds[: min(num_accepted + 1, len(drafts))]):
            is_right = place < num_accepted
            for chances in records:
                chances[kind].count(is_right)
            self.verified[kind] += 1
            self.accepted[kind] += is_right
        self._tell_kin(memory, sequence.tokens)

    def stats(self) -> dict[str, float]:
        """Drafts looked at and accepted, by kind, and what a row costs of a step's fixed part."""
        found: dict[str, float] = {"draft_row_cost_ratio": self.costs.row_ratio()}
        for kind in Kind:
            found[f"verified_{kind.name.lower()}_drafts"] = self.verified[kind]
            found[f"accepted_{kind.name.lower()}_drafts"] = self.accepted[kind]
        return found

    def _memory(self, sequence: SequenceState) -> Memory:
        memory = sequence.drafting
        if not isinstance(memory, Memory):
            kin = Kin() if self._kin is None else self._kin.of(kin_key(sequence))
            is_drawn = sequence.request.sampling.temperature > 0
            records = self.chances[is_drawn][: Kind.KIN_LONG]
            records += kin.chances[is_drawn][Kind.KIN_LONG :]
            chances = [Chance(chance.rate) for chance in records]
            memory = sequence.drafting = Memory(chances, is_drawn, kin, sequence.num_given)
        return memory

    def _tell_kin(self, memory: Memory, known: "array[int]") -> None:
        if self._kin is not None:
            memory.kin.shelf.add(known, memory.num_told)
            memory.num_told = len(known)

    def _note_habit(self, memory: Memory, known: "array[int]") -> None:
        """Learn how the text was spelled that was forced a while ago, once it is written."""
        written = known[memory.forced_at :]
        if memory.forced and self._habits.is_over(memory.forced, written):
            self._habits.learn(known[memory.forced_at - 1], memory.forced, written)
            memory.forced = b""

    def _spell(self, guess: "_Guess", forced: bytes) -> tuple[list[int], list[Kind]]:
        memory = guess.memory
        if not memory.forced and not guess.drafts:
            memory.forced, memory.forced_at = forced, guess.num_known
        tail = guess.last(MAX_TAIL)
        habit = self._habits.spell(tail[-1], forced)
        if habit:
            return habit, [Kind.HABIT] * len(habit)
        tokens = self._speller.spell(tail, forced)
        return tokens, [Kind.FORCED] * (len(tokens) - 1) + [Kind.EDGE] * (len(tokens) > 0)

    def _extend(self, guess: "_Guess") -> bool:
        """Add one run of drafts; False when there is no more to add."""
        if self._jump_forward == "exact" and guess.matcher is not None:
            forced = guess.matcher.forced_bytes()[:MAX_FORCED]
            if forced:
                return guess.add(*self._spell(guess, forced))
        found = self._likeliest(guess)
        return found is not None and guess.add(*found)

    def _likeliest(self, guess: "_Guess") -> tuple[list[int], list[Kind]] | None:
        """What was seen before, of the kind most often right that is worth it and has any."""
        kinds = _SEEN_HERE if self._prompt_lookup else ()
        kinds += _SEEN_ELSEWHERE if self._kin is not None else ()
        for kind in sorted(kinds, key=guess.rate, reverse=True):
            if guess.is_worth(kind):
                tokens = guess.seen(kind)
                if tokens:
                    return tokens, [kind] * len(tokens)
        return None


class _Guess:
    """Drafts while they are put together; the sequence's matcher stays where it is."""

    def __init__(
        self,
        sequence: SequenceState,
        limit: int,
        least: float,
        memory: Memory,
        is_trial: bool,
        is_jumping: bool,
    ) -> None:
        self.memory = memory
        self.drafts: list[int] = []
        self.kinds: list[Kind] = []
        self.hopes: list[float] = []
        matcher = sequence.matcher
        self.matcher = matcher.fork() if isinstance(matcher, GrammarMatcher) else None
        self._known = sequence.tokens
        self.num_known = len(sequence.tokens)
        self._limit = limit
        self._least = least
        self._chances = memory.chances
        self._chance = 1.0
        self.is_trial = is_trial
        self._is_jumping = is_jumping
        self._data: bytearray | None = None  # the last tokens, drafts included

    def is_worth(self, kind: Kind) -> bool:
        """Whether one more guess of a kind is likely enough to be used."""
        if self._chance * self._chances[kind].rate >= self._least:
            return True
        if self.drafts:
            return False
        self.is_trial = self.is_trial or self._chances[kind].pass_over()
        return self.is_trial

    def rate(self, kind: Kind) -> float:
        return self._chances[kind].rate

    def add(self, tokens: Sequence[int], kinds: Sequence[Kind]) -> bool:
        """Append tokens while they fit and pay; whether all did, so that more may follow."""
        for token, kind in zip(tokens, kinds, strict=True):
            if len(self.drafts) == self._limit or not self.is_worth(kind):
                return False
            if self.matcher is not None:
                if not self.matcher.accept_token(token):
                    return False
                # What is forced here is to be taken as without drafts, or they would change tokens.
                if self._is_jumping and self.matcher.forced_bytes():
                    return False
            self.drafts.append(token)
            self.kinds.append(kind)
            self._chance *= self._chances[kind].rate
            self.hopes.append(self._chance)
            if self._data is not None:
                self._data += array("i", (token,)).tobytes()
        return len(tokens) > 0

    def last(self, count: int) -> list[int]:
        missing = max(count - len(self.drafts), 0)
        return [*(self._known[-missing:] if missing else ()), *self.drafts[-count:]]

    def seen(self, kind: Kind) -> list[int]:
        """What followed the last tokens, here or in other outputs."""
        if kind in _SEEN_HERE:
            return self.seen_before(LONG if kind is Kind.COPY_LONG else SHORT)
        length = suffixes.LONG if kind is Kind.KIN_LONG else suffixes.SHORT
        most = min(MAX_COPY, self._limit - len(self.drafts))
        return self.memory.kin.shelf.follow(self.last(length), length, most)

    def seen_before(self, length: int) -> list[int]:
        """What followed the last occurrence of the last `length` tokens before this one."""
        if self._data is None:
            known = self._known[-MAX_SEARCHED:]
            self._data = bytearray(known.tobytes() + array("i", self.drafts).tobytes())
        data, width = self._data, self._known.itemsize
        pattern = bytes(data[-length * width :])
        end = len(data) - width
        while len(pattern) == length * width:
            at = data.rfind(pattern, 0, max(end, 0))
            if at < 0:
                break
            if at % width == 0:
                start = at + len(pattern)
                return array("i", bytes(data[start : start + MAX_COPY * width])).tolist()
            end = at + len(pattern) - 1
        return []
