import code
shell = code.InteractiveInterpreter({"__name__": "shell"})
shell.runsource("x = 1\nprint(x)\n", symbol="exec")
shell.runsource("1 / 0")
print(shell.runsource("def f():"))
