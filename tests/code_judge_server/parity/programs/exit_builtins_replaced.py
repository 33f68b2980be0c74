import builtins, sys
print("begin", flush=True)
for name in ("any", "bool", "getattr", "hasattr", "isinstance", "issubclass", "map", "set", "tuple", "type", "open", "__import__"):
    setattr(builtins, name, None)
sys.stdout.write("end\n")
