from enum import Enum, Flag, IntEnum, StrEnum, auto
class Color(Enum):
    RED = auto()
    GREEN = auto()
    CRIMSON = 1
class Mode(Flag):
    R = auto(); W = auto()
class Level(IntEnum):
    LOW = 1
class Name(StrEnum):
    ONE = auto()
print(list(Color), Color.CRIMSON, repr(Color(2)), Mode.R | Mode.W, Level.LOW + 1, Name.ONE, f"{Name.ONE}")
Color(9)
