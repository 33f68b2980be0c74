from dataclasses import asdict, astuple, dataclass, field, fields, replace, FrozenInstanceError
@dataclass(order=True, slots=True)
class Item:
    price: float
    name: str = "unnamed"
    tags: list[str] = field(default_factory=list, compare=False)
@dataclass(frozen=True)
class Fixed:
    x: int
print(sorted([Item(2.5, "b"), Item(1.0)]), asdict(Item(1)), astuple(Item(2)), replace(Item(1), name="n"))
print([it.name for it in fields(Item)], Item.__module__, hash(Fixed(1)) == hash(Fixed(1)))
try:
    Fixed(1).x = 2
except FrozenInstanceError as error:
    print(type(error), error)
