import inspect


class Shape:
    """A shape."""

    def area(self, width: int, *, height: int = 2) -> int:
        return width * height


print(inspect.getsource(Shape))
print(inspect.signature(Shape.area), inspect.getsourcefile(Shape), inspect.getmodule(Shape))
print(inspect.getdoc(Shape), inspect.getsourcelines(Shape.area)[1])
