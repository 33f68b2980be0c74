def f():
    nonlocal missing
