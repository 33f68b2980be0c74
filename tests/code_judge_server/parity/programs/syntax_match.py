def kind(value):
    match value:
        case [x, *rest] if rest:
            return f"list {x} {rest}"
        case {"type": str(name), **others}:
            return f"dict {name} {others}"
        case int() | float() as number:
            return f"number {number}"
        case _:
            return "other"


for value in ([1, 2, 3], {"type": "a", "b": 1}, 3.5, None, [1]):
    print(kind(value))
