def make():
    errors = []
    for text in ("a", "b"):
        try:
            int(text)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("several", [*errors, ExceptionGroup("inner", [KeyError("k")])])


make()
