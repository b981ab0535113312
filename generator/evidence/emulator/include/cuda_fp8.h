// All of it is in emu.h, which is included ahead of every source.
