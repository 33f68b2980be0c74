def load():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("cannot load") from error


try:
    load()
except ValueError:
    1 / 0
