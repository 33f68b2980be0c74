def first():
    second([1, 2, 3])


def second(values):
    total = sum(values) + values["key"]


first()
