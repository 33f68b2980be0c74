from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
class Base(ABC):
    @abstractmethod
    def run(self): ...
class Done(Base):
    def run(self): return "ran"
print(Done().run(), isinstance([], Sequence), issubclass(Done, Iterable))
Base()
