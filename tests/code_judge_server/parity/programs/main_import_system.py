import sys

print([type(it).__name__ if not isinstance(it, type) else it.__name__ for it in sys.meta_path])
print(len(sys.path_hooks), sys.path_hooks[0])
print([name for name in sys.modules if "judge" in name or name.startswith("agentrl")])
try:
    import code_judge_server
except ImportError as error:
    print(type(error).__name__, error)
try:
    import main
except NameError as error:
    print(error)
print("main" in sys.modules)
