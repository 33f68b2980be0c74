from typing import Annotated, Generic, NamedTuple, Optional, Protocol, TypedDict, TypeVar, Union, get_type_hints
T = TypeVar("T")
class Box(Generic[T]):
    def __init__(self, item: T) -> None: self.item = item
class Movie(TypedDict, total=False):
    title: str
class P(NamedTuple):
    x: int
    y: Optional[str] = None
print(Box[int], Movie(title="x"), P(1), get_type_hints(P), Union[int, None], Annotated[int, "meta"], list[int] | None, T, Box.__module__)
