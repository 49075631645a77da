"""What both ways share: Farama's names for what ours has numbers for."""

from jaxagent.envs import language

FIRST, SECOND = 1, 2  # bits of `Task.members` for the two descriptions of the first leaf

# by the words of descriptions
KINDS = {language.OBJECT: None, language.BOX: "box", language.BALL: "ball", language.KEY: "key", language.DOOR: "door"}
PLACES = {
    0: None,
    language.ON_LEFT: "left",
    language.ON_RIGHT: "right",
    language.IN_FRONT: "front",
    language.BEHIND: "behind",
}
