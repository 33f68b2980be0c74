import builtins, sys
builtins.isinstance = builtins.type = builtins.getattr = builtins.KeyboardInterrupt = builtins.SystemExit = None
sys.__excepthook__ = None
raise LookupError("of the program")
