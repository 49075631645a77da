"""Missions: numbers, words and tokens say the same, and the same as Farama's own missions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.envs import language
from jaxagent.envs.language import VERBS, Mission, detokenize, parse, text, tokenize

BABYAI = [verb for verb, entry in VERBS.items() if entry.family == "babyai"]
MINIGRID = [verb for verb, entry in VERBS.items() if entry.family == "minigrid"]
TOKENS = jax.jit(language.tokens)
ALL_TOKENS = jax.jit(jax.vmap(language.tokens))
LONGEST = (
    "put a purple object in front of you next to a purple object in front of you"
    " and put a purple object in front of you next to a purple object in front of you"
    ", then put a purple object in front of you next to a purple object in front of you"
    " and put a purple object in front of you next to a purple object in front of you"
)


def random_leaf(rng, verbs):
    """Any leaf of any of the verbs: what the template names, and nothing else."""
    verb = int(rng.choice(verbs))
    template, kinds, family = VERBS[verb]
    leaf = np.zeros(language.NUM_FIELDS, np.uint8)
    leaf[language.VERB] = verb
    at_least = 0 if family == "babyai" else 1
    words = template.split()
    for i, suffix in enumerate(("", "_2")):
        if "COLOUR" + suffix in words:
            leaf[language.COLOUR + 3 * i] = rng.integers(at_least, 7)
        if "KIND" + suffix in words:
            leaf[language.KIND + 3 * i] = rng.choice(kinds[i])
        if "PLACE" + suffix in words:
            leaf[language.PLACE + 3 * i] = rng.integers(5)
        if "ARTICLE" + suffix in words:
            leaf[language.ARTICLES] |= rng.integers(2) << i
    return leaf


def random_missions(num, seed=0):
    """Missions of the whole grammar, uint8 `[num, 4, 8]` and `[num]`: MiniGrid's sentences in one of eight."""
    rng = np.random.default_rng(seed)
    leaves, order = np.zeros((num, 4, 8), np.uint8), rng.integers(3, size=num).astype(np.uint8)
    for i in range(num):
        if rng.random() < 1 / 8:
            leaves[i, 0], order[i] = random_leaf(rng, MINIGRID), language.ALONE
            continue
        for half in range(1 + (order[i] != language.ALONE)):
            for j in range(rng.integers(1, 3)):
                leaves[i, 2 * half + j] = random_leaf(rng, BABYAI)
    return leaves, order


@pytest.mark.fast
class TestTables:
    def test_verbs_and_words_are_numbered_without_gaps(self):
        assert sorted(VERBS) == list(range(1, language.NUM_VERBS))
        assert len(set(language.VOCABULARY)) == len(language.VOCABULARY) == 55
        assert language.VOCABULARY[0] == ""

    def test_tokens_keep_their_numbers(self):
        # checkpoints depend on them
        assert language.VOCABULARY[:14] == (
            *("", "red", "green", "blue", "purple", "yellow", "grey"),
            *("object", "box", "ball", "key", "door", "the", "a"),
        )
        some = "on , then after and go open pick put get reach unlock near fetch must hallway"
        assert tokenize(some)[:16].tolist() == [14, 23, 24, 25, 26, 27, 29, 30, 32, 34, 41, 47, 48, 49, 50, 54]

    def test_spaces(self):
        assert language.LEAVES_SPACE.nvec == (22, 7, 6, 5, 7, 6, 5, 4) * 4 + (3,)
        assert language.TOKENS_SPACE.nvec == (55,) * 72


@pytest.mark.fast
class TestRoundTrips:
    def test_random_missions(self):
        leaves, order = random_missions(2000)
        tokens = np.asarray(ALL_TOKENS(Mission(leaves, order)))
        assert tokens.dtype == np.uint8 and tokens.shape == (2000, 72)
        sentences = set()
        for row_leaves, row_order, row_tokens in zip(leaves, order, tokens, strict=True):
            sentence = text(Mission(row_leaves, row_order))
            np.testing.assert_array_equal(tokenize(sentence), row_tokens)
            assert detokenize(row_tokens) == sentence
            read = parse(sentence, {int(verb) for verb in row_leaves[:, language.VERB] if verb})
            np.testing.assert_array_equal(read.leaves, row_leaves)
            assert read.order == row_order
            sentences.add(sentence)
        assert len(sentences) > 1500
        assert {word for sentence in sentences for word in sentence.replace(",", " ,").split()} == {*language.VOCABULARY[1:]}

    def test_the_longest_mission_fills_all_tokens(self):
        np.testing.assert_array_equal(TOKENS(parse(LONGEST)), tokenize(LONGEST))
        assert np.all(tokenize(LONGEST) != 0)

    def test_tokens_of_the_first_leaf_alone(self):
        leaves, order = random_missions(200, seed=1)
        leaves, order = leaves[order == language.ALONE], order[order == language.ALONE]
        leaves, order = leaves[leaves[:, 1, language.VERB] == 0], order[leaves[:, 1, language.VERB] == 0]
        whole = ALL_TOKENS(Mission(leaves, order))
        cut = ALL_TOKENS(Mission(leaves[:, :1], order))
        np.testing.assert_array_equal(cut, whole)

    def test_every_verb_of_one_rule_and_wording_is_read_by_default(self):
        for verb in set(VERBS) - {language.STOP_NEXT_TO}:  # "go to the red door" is BabyAI's by default
            mission = language.alone(jnp.asarray(random_leaf(np.random.default_rng(0), [verb])))
            assert parse(text(mission)).leaves[0, language.VERB] == verb

    def test_verbs_settle_what_words_do_not(self):
        assert parse("go to the red door").leaves[0].tolist() == [language.GO_TO, 1, language.DOOR, 0, 0, 0, 0, 0]
        stop = parse("go to the red door", verbs={language.STOP_NEXT_TO})
        assert stop.leaves[0].tolist() == [language.STOP_NEXT_TO, 1, language.DOOR, 0, 0, 0, 0, 0]

    def test_words_are_read_in_any_case_and_spacing(self):
        assert text(parse(" Go to  the RED ball ,then open a door")) == "go to the red ball, then open a door"

    def test_flatten(self):
        mission = parse("go to a key behind you after you open the red door")
        flat = language.flatten(mission)
        assert (flat.shape, flat.dtype) == ((33,), jnp.uint8)
        for numbers in (flat, tuple(flat.tolist())):
            assert text(language.unflatten(numbers)) == text(mission)

    def test_leaf(self):
        leaf = language.leaf(language.PUT_NEXT, kind=language.BOX, colour_2=1, kind_2=jnp.uint8(4), articles=language.A_SECOND)
        assert text(language.alone(leaf)) == "put the box next to a red key"


@pytest.mark.fast
class TestErrors:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("go to the red bal", "mission: unknown word 'bal' at character 14 of 'go to the red bal'; nearest: 'ball'"),
            ("go to the red ball.", "unknown word 'ball.' at character 14 .* nearest: 'ball'"),
            (" ".join(["go"] * 73), "mission: expected at most 72 words and commas, got 73"),
        ],
    )
    def test_tokenize(self, words, message):
        with pytest.raises(ValueError, match=message):
            tokenize(words)

    @pytest.mark.parametrize("tokens", [[55], [3, -1], [200]])
    def test_detokenize(self, tokens):
        with pytest.raises(ValueError, match=f"mission: expected tokens 0 - 54, got {tokens[-1]}"):
            detokenize(np.array(tokens))
        with pytest.raises(ValueError, match=r"mission: expected tokens \[L\] of one text, got \[1, \d\]"):
            detokenize(np.array([tokens]))

    @pytest.mark.parametrize(
        ("words", "wrong"),
        [
            ("go to the wall", None),
            ("red", "red"),
            ("go to the red ball and go the key", "go the key"),
            ("pick up the door", "pick up the door"),
            ("open the ball", "open the ball"),
            ("go to a red ball and reach the goal", "go to a red ball and reach the goal"),
            ("go to a ball and go to a key and go to a box", "go to a ball and go to a key and go to a box"),
            ("go to a ball, then go to a key after you go to a box", "go to a ball, then go to a key after you go to a box"),
            ("go to a ball, then", "go to a ball, then"),
            ("fetch the red key", "fetch the red key"),
            ("get a key", "get a key"),
            ("put the red box near the green door", "put the red box near the green door"),
            (
                "get the red key from the blue room, unlock the green door and go to the goal",
                "get the red key from the blue room, unlock the green door",
            ),
        ],
    )
    def test_parse(self, words, wrong):
        message = "unknown word 'wall'" if wrong is None else f"got {words!r}: cannot read {wrong!r}"
        with pytest.raises(ValueError, match=message):
            parse(words)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ((0, language.VERB), 99, "mission: leaf 0, verb: expected 0 - 21, got 99"),
            ((2, language.KIND), 6, "mission: leaf 2, kind: expected 0 - 5, got 6"),
            ((0, language.VERB), 0, r"are no mission; they read ''"),  # of no verb
            ((0, language.KIND), 0, r"are no mission; they read 'go to the red'"),
            ((0, language.COLOUR_2), 1, r"are no mission; they read 'go to the red ball'"),  # of no use
            ((1, language.VERB), language.REACH_GOAL, "no mission; they read 'go to the red ball and reach the goal'"),
            ((3, language.VERB), language.GO_TO, "are no mission"),
        ],
    )
    def test_text(self, field, value, message):
        mission = parse("go to the red ball")
        with pytest.raises(ValueError, match=message):
            text(mission._replace(leaves=mission.leaves.at[field].set(value)))

    def test_text_of_other_shapes_and_orders(self):
        mission = parse("go to the red ball")
        with pytest.raises(ValueError, match=r"mission: expected leaves of shape \(4, 8\), got \(2, 8\)"):
            text(mission._replace(leaves=mission.leaves[:2]))
        with pytest.raises(ValueError, match=r"mission: expected leaves of shape \(4, 8\), got \(3, 4, 8\)"):
            text(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), mission))
        with pytest.raises(ValueError, match="mission: order: expected 0 - 2, got 3"):
            text(mission._replace(order=jnp.uint8(3)))
        with pytest.raises(ValueError, match="no mission; they read 'go to the red ball, then '"):
            text(mission._replace(order=jnp.uint8(language.THEN)))


class TestFarama:
    def test_the_words_of_its_instructions(self):
        verifier = pytest.importorskip("minigrid.envs.babyai.core.verifier")

        class Description(verifier.ObjDesc):
            """A description whose number of objects is given, instead of counted in a world."""

            def __init__(self, colour, kind, place, several):
                names = (None, "box", "ball", "key", "door"), (None, *(language.symbols.COLOUR_NAMES))
                super().__init__(names[0][kind - 1], names[1][colour], (None, *verifier.LOC_NAMES)[place])
                self.objects = [None] * (1 + several)

            def find_matching_objs(self, env, use_location=True):
                self.obj_set = self.objects

        def instruction(leaf):
            verb, *fields, articles = leaf.tolist()
            first, second = Description(*fields[:3], articles & 1), Description(*fields[3:], articles >> 1)
            if verb == language.GO_TO:
                return verifier.GoToInstr(first)
            if verb == language.OPEN:
                return verifier.OpenInstr(first)
            return verifier.PickupInstr(first) if verb == language.PICK_UP else verifier.PutNextInstr(first, second)

        def half(leaves):
            parts = [instruction(leaf) for leaf in leaves if leaf[language.VERB]]
            return parts[0] if len(parts) == 1 else verifier.AndInstr(*parts)

        leaves, order = random_missions(1000, seed=2)
        of_babyai = np.isin(leaves[:, 0, language.VERB], BABYAI)
        for row_leaves, row_order in zip(leaves[of_babyai], order[of_babyai], strict=True):
            whole = half(row_leaves[:2])
            if row_order:
                sequence = verifier.BeforeInstr if row_order == language.THEN else verifier.AfterInstr
                whole = sequence(whole, half(row_leaves[2:]))
            assert whole.surface(None) == text(Mission(row_leaves, row_order))

    @pytest.mark.filterwarnings("ignore")  # Gymnasium's, of ids with newer versions
    @pytest.mark.parametrize(("family", "num"), [("BabyAI", 96), ("MiniGrid", 76)])
    def test_the_missions_of_its_environments(self, family, num):
        gymnasium = pytest.importorskip("gymnasium")
        pytest.importorskip("minigrid")
        names = [name for name in gymnasium.registry if name.startswith(f"{family}-") and "WFC" not in name]
        assert len(names) == num
        for name in names:
            env = gymnasium.make(name, disable_env_checker=True).unwrapped
            for seed in range(2):
                said = env.reset(seed=seed)[0]["mission"]
                mission = parse(said)
                assert text(mission) == said
                assert detokenize(TOKENS(mission)) == said
                numbers = language.flatten(mission)
                assert np.all(numbers < np.array(language.LEAVES_SPACE.nvec))
