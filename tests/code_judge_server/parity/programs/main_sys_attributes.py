import sys

print(sys.argv, sys.orig_argv[1:], sys.path, sys.executable == sys.orig_argv[0])
print(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.is_finalizing(), sys.gettrace(), sys.getprofile())
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.unraisablehook)
print(sys.exc_info(), hasattr(sys, "last_value"), hasattr(sys, "ps1"))
print(sys.prefix, sys.base_prefix, sys.exec_prefix, sys.platform, sys.maxsize, sys.byteorder)
print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), sys.getdefaultencoding())
