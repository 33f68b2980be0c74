list(map(lambda value: value.missing, [object]))
