"""BabyAI's instructions are judged as Farama judges them: the same steps succeed and fail, by the same actions."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

import lockstep  # noqa: E402
from lockstep import DONE, DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, adversarial_stream, script  # noqa: E402
from minigrid.core.world_object import Ball, Box, Door, Key  # noqa: E402
from minigrid.envs.babyai.core import verifier  # noqa: E402
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel  # noqa: E402
from minigrid.envs.babyai.core.verifier import (  # noqa: E402
    AfterInstr,
    AndInstr,
    BeforeInstr,
    GoToInstr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from jaxagent.envs import babyai  # noqa: E402
from jaxagent.interop.farama import from_farama  # noqa: E402

STEPS = 80


# registered levels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seed"), lockstep.rotating(babyai.ENVS, 5))
def test_a_sample_of_levels(name, seed):
    for make in lockstep.STREAMS.values():
        source = lockstep.made(name)
        assert not lockstep.first_mismatches(source, lockstep.reset(source, seed))
        (stream,) = make([source], [np.random.default_rng(seed)])
        lockstep.run(source, stream, STEPS)


def test_the_expert_succeeds():
    source = lockstep.made("BabyAI-KeyInBox-v0")
    lockstep.reset(source, 0)
    (stream,) = lockstep.expert_streams([source], [np.random.default_rng(0)])
    steps = lockstep.run(source, stream, STEPS).steps
    assert steps.terminated[-1] and steps.reward[-1] > 0


def test_what_is_carried_from_the_start_is_first_seen_on_the_floor():
    name = "BabyAI-PutNextS5N2Carrying-v0"
    source = lockstep.made(name)
    seen = lockstep.reset(source, 0)
    assert not lockstep.first_mismatches(source, seen) and source.carrying is not None
    env, params, state = from_farama(source)
    assert (env, params) == babyai.make(name, obs="symbolic") and state.carrying == 0
    episode = lockstep.run(source, script([DONE, DROP, PICKUP, DROP]), STEPS)
    kind, colour, _ = episode.steps.image[0, 3, 6]
    assert (kind, colour) == (state.objects.symbol[state.objects.held] >> 3, state.objects.symbol[state.objects.held] & 7)


# any instruction --------------------------------------------------------------------------------------------------------------


class Anything(RoomGridLevel):
    """Two small rooms and any instruction, strict or not, about things of two colours."""

    def __init__(self):
        super().__init__(room_size=5, num_rows=1, num_cols=2, max_steps=STEPS)

    def gen_mission(self):
        door, _ = self.add_door(0, 0, 0, color=self._colour(), locked=self._rand_bool())
        self.add_object(0, 0, "key", door.color)
        for _ in range(7):
            self.add_object(self._rand_int(0, 2), 0, self._rand_elem(["key", "ball", "box"]), self._colour())
        self.place_agent(0, 0)
        self.instrs = self._instruction()

    def _colour(self):
        return self._rand_elem(["red", "blue"])

    def _strict(self):
        return self._rand_bool()

    def _description(self, *kinds):
        for _ in range(100):
            place = self._rand_elem(["left", "right", "front", "behind"]) if self._rand_int(0, 3) == 0 else None
            description = ObjDesc(self._rand_elem(kinds), self._rand_elem(["red", "blue"]), place)
            if description.find_matching_objs(self)[0]:
                return description
        raise RecursionError

    def _leaf(self):
        portable = ("key", "ball", "box")
        verb = self._rand_int(0, 4)
        if verb == 0:
            return GoToInstr(self._description(*portable, "door", None))
        if verb == 1:
            return OpenInstr(self._description("door"), strict=self._strict())
        if verb == 2:
            return PickupInstr(self._description("key", "ball", "box"), strict=self._strict())
        return PutNextInstr(
            self._description("key", "ball", "box"), self._description(*portable, "door"), strict=self._strict()
        )

    def _half(self):
        return AndInstr(self._leaf(), self._leaf()) if self._rand_bool() else self._leaf()

    def _instruction(self):
        kind = self._rand_elem([AndInstr, BeforeInstr, AfterInstr, None])
        if kind is None:
            return self._leaf()
        return AndInstr(self._leaf(), self._leaf()) if kind is AndInstr else kind(self._half(), self._half())


def claiming_stream(source, rng):
    """As the adversarial one, but more often done when something was done."""
    act = adversarial_stream(source, rng, complete=True)

    def matched(instruction):
        parts = (instruction.instr_a, instruction.instr_b) if hasattr(instruction, "instr_a") else ()
        return any(map(matched, parts)) if parts else instruction.lastStepMatch

    return lambda: DONE if matched(source.instrs) and rng.random() < 0.6 else act()


@pytest.mark.parametrize("done_action", [False, True])
def test_any_instruction(done_action, monkeypatch):
    """Conversions at the start, and after some steps, of episodes in which much succeeds and fails."""
    monkeypatch.setattr(verifier, "use_done_actions", done_action)
    source, rng, episodes = Anything(), np.random.default_rng(0), []
    for seed in range(120):
        lockstep.reset(source, seed)
        stream = claiming_stream(source, rng)
        if seed % 2 and any(any(source.step(stream())[2:4]) for _ in range(8)):
            continue
        episodes.append(lockstep.record(source, stream, STEPS))
    for episode, ours in zip(episodes, lockstep.replay(episodes, STEPS), strict=True):
        assert not lockstep.mismatches(episode, ours)
        assert episode.env.level.done_action == done_action
    rewards = [episode.steps.reward[-1] for episode in episodes if episode.steps.terminated[-1]]
    succeeded = sum(reward > 0 for reward in rewards)
    assert succeeded >= 10 and len(rewards) - succeeded >= 10, "both ends are seen"


# one instruction at a time ----------------------------------------------------------------------------------------------------


class Told(RoomGridLevel):
    """The first of four rooms, with the agent at (3, 3), facing right, and given things and instructions."""

    def __init__(self, instruction, things):
        self.instruction, self.things = instruction, things
        super().__init__(room_size=7, num_rows=2, num_cols=2, max_steps=STEPS)

    def gen_mission(self):
        for xy, thing in self.things.items():
            self.put_obj(thing, *xy)
        self.agent_pos, self.agent_dir = (3, 3), 0
        self.instrs = self.instruction


RED_BALL, BLUE_BALL, BLUE_KEY, BLUE_BOX = ("ball", "red"), ("ball", "blue"), ("key", "blue"), ("box", "blue")
DOOR = ("door", "red")
FRONT, ABOVE = (4, 3), (3, 2)


def go_to(what):
    return GoToInstr(ObjDesc(*what))


def pick_up(what, strict=False):
    return PickupInstr(ObjDesc(*what), strict)


def put(what, where, strict=False):
    return PutNextInstr(ObjDesc(*what), ObjDesc(*where), strict)


def open_(what, strict=False):
    return OpenInstr(ObjDesc(*what), strict)


def told(instruction, things, actions):
    """Rewards and ends of the steps, in lockstep."""
    source = Told(instruction, things)
    lockstep.reset(source, 0)
    steps = lockstep.run(source, script(actions), STEPS).steps
    assert not steps.terminated[:-1].any(), "it goes on until the last action"
    return "continue" if not steps.terminated[-1] else "success" if steps.reward[-1] > 0 else "failure"


def things(*placed):
    """Positions and (kind, colour) in turn."""
    kinds = {"ball": Ball, "key": Key, "box": Box, "door": Door}
    return {xy: kinds[kind](colour) for xy, (kind, colour) in zip(placed[::2], placed[1::2], strict=True)}


BALL_AND_KEY = (FRONT, RED_BALL, ABOVE, BLUE_KEY)
FETCH_BALL = [RIGHT, PICKUP, LEFT, LEFT]  # from below, to put it above
BESIDE_BOTH = ((3, 4), RED_BALL, (2, 2), BLUE_KEY, (4, 2), BLUE_BOX)


@pytest.mark.parametrize(
    ("instruction", "placed", "actions", "outcome"),
    [
        # to look at it is enough, and the first action can do
        (go_to(RED_BALL), BALL_AND_KEY, [DONE], "success"),
        (go_to(BLUE_KEY), BALL_AND_KEY, [DONE, RIGHT, RIGHT, RIGHT], "success"),
        # the verifier looks for things only when something is dropped, or should have been
        (BeforeInstr(go_to(BLUE_KEY), go_to(RED_BALL)), BALL_AND_KEY, [PICKUP, LEFT, RIGHT], "success"),
        (BeforeInstr(go_to(BLUE_KEY), go_to(RED_BALL)), BALL_AND_KEY, [PICKUP, LEFT, DROP, RIGHT], "continue"),
        # the action that completes a half is shown to the other as well
        (BeforeInstr(pick_up(RED_BALL), go_to(RED_BALL)), BALL_AND_KEY, [PICKUP], "success"),
        (AfterInstr(go_to(RED_BALL), pick_up(RED_BALL)), BALL_AND_KEY, [PICKUP], "success"),
        (AfterInstr(pick_up(RED_BALL), go_to(RED_BALL)), BALL_AND_KEY, [LEFT, RIGHT, PICKUP], "success"),
        (BeforeInstr(pick_up(RED_BALL), pick_up(RED_BALL)), BALL_AND_KEY, [PICKUP], "success"),
        # what is already in the agent's hands was not picked up by this action
        (BeforeInstr(go_to(BLUE_KEY), pick_up(RED_BALL)), BALL_AND_KEY, [PICKUP, LEFT, PICKUP], "continue"),
        # either order, and neither fails
        (AndInstr(go_to(RED_BALL), go_to(BLUE_KEY)), BALL_AND_KEY, [DONE, LEFT], "success"),
        (AndInstr(pick_up(RED_BALL, strict=True), go_to(BLUE_KEY)), BALL_AND_KEY, [LEFT, PICKUP], "continue"),
        # next to: beside it, not at a corner
        (put(RED_BALL, BLUE_KEY), BALL_AND_KEY, [PICKUP, DROP], "continue"),
        (put(RED_BALL, BLUE_KEY), (FRONT, RED_BALL, (2, 2), BLUE_KEY), [PICKUP, LEFT, DROP], "success"),
        # a half that begins with the action that drops does not know what was carried
        (BeforeInstr(put(RED_BALL, BLUE_BOX), put(RED_BALL, BLUE_KEY)), BESIDE_BOTH, [*FETCH_BALL, DROP, DONE], "continue"),
        (BeforeInstr(put(RED_BALL, BLUE_BOX), put(RED_BALL, BLUE_KEY)), BESIDE_BOTH,
         [*FETCH_BALL, DROP, PICKUP, DROP], "success"),
        # doors
        (open_(DOOR), ((6, 3), DOOR), [FORWARD, FORWARD, TOGGLE], "success"),
        (BeforeInstr(go_to(DOOR), open_(DOOR)), ((6, 3), DOOR), [FORWARD, FORWARD, TOGGLE], "success"),
        # strict: the wrong one fails, and so does any for one that must be put
        (pick_up(BLUE_KEY, strict=True), BALL_AND_KEY, [PICKUP], "failure"),
        (pick_up(BLUE_KEY, strict=True), BALL_AND_KEY, [LEFT, LEFT, PICKUP, RIGHT, PICKUP], "success"),
        (put(RED_BALL, BLUE_KEY, strict=True), BALL_AND_KEY, [PICKUP], "failure"),
        (open_(DOOR, strict=True), ((6, 3), DOOR, (3, 6), ("door", "blue")), [RIGHT, FORWARD, FORWARD, TOGGLE], "failure"),
        (BeforeInstr(go_to(RED_BALL), pick_up(BLUE_KEY, strict=True)), BALL_AND_KEY, [PICKUP], "failure"),
        # a box takes its place in the instruction along when it is opened
        (BeforeInstr(go_to(BLUE_KEY), go_to(BLUE_BOX)), (FRONT, BLUE_BOX, ABOVE, BLUE_KEY), [TOGGLE, LEFT, RIGHT], "success"),
    ],
)  # fmt: skip
def test_timing(instruction, placed, actions, outcome):
    assert told(instruction, things(*placed), actions) == outcome


@pytest.mark.parametrize(
    ("instruction", "actions", "outcome"),
    [
        (lambda: go_to(RED_BALL), [FORWARD, DONE], "success"),
        (lambda: go_to(RED_BALL), [FORWARD, LEFT, DONE], "failure"),
        (lambda: go_to(RED_BALL), [DONE], "failure"),
        (lambda: pick_up(BLUE_KEY, strict=True), [PICKUP, LEFT], "continue"),
        (lambda: AndInstr(go_to(RED_BALL), go_to(BLUE_KEY)), [FORWARD, DONE, LEFT, DONE], "success"),
        (lambda: AndInstr(go_to(RED_BALL), go_to(BLUE_KEY)), [LEFT, RIGHT, RIGHT, DONE], "continue"),
        # the claim that completes one half is a false one for the other
        (lambda: BeforeInstr(go_to(RED_BALL), go_to(BLUE_KEY)), [FORWARD, DONE], "failure"),
    ],
)
def test_claims(instruction, actions, outcome):
    with mock.patch.object(verifier, "use_done_actions", True):
        assert told(instruction(), things(*BALL_AND_KEY), actions) == outcome


# conversion -------------------------------------------------------------------------------------------------------------------


def test_states_of_a_level_have_its_shapes():
    for name in ("BabyAI-GoToLocal-v0", "BabyAI-KeyInBox-v0", "BabyAI-MiniBossLevel-v0"):
        source = lockstep.made(name)
        lockstep.reset(source, 1)
        env, params, state = from_farama(source, obs="packed", mission="tokens")
        ours, our_params = babyai.make(name, mission="tokens")
        assert env == ours and params == our_params and env.limit(state, params) == source.max_steps
        generated = jax.eval_shape(ours.reset, jax.random.key(0), params)[1]
        assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, generated)


class Stay(verifier.ActionInstr):
    def surface(self, env):
        return "stay"

    def verify_action(self, action):
        return "continue"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda source: setattr(source, "mission", "go to the blue ball"), "expected 'go to the red ball', as its rules say"),
        (lambda source: setattr(source, "instrs", Stay()), "expected one of GoToInstr, .*, got Stay"),
        (lambda source: source.instrs.desc.obj_poss.append((1, 1)), r"was ever at \(1, 1\)"),
        (lambda source: setattr(source.instrs.desc, "obj_set", [source.grid.get(0, 0)]), "walls are described"),
    ],
)
def test_instructions_that_no_level_gives_are_refused(change, message):
    source = Told(go_to(RED_BALL), things(*BALL_AND_KEY))
    lockstep.reset(source, 0)
    change(source)
    with pytest.raises(ValueError, match=message):
        from_farama(source)


def test_a_strict_sequence_is_refused():
    source = Told(BeforeInstr(go_to(RED_BALL), go_to(BLUE_KEY), strict=True), things(*BALL_AND_KEY))
    lockstep.reset(source, 0)
    with pytest.raises(ValueError, match="a strict BeforeInstr is in no level"):
        from_farama(source)
