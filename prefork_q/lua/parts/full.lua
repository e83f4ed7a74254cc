-- full: what must work on a server that has reached its maxmemory begins its writes here. Such a server
-- refuses the writes of a script that may need memory, unless one that cannot has come before. This one
-- takes nothing out of the set; if something else stands where the set belongs, it raises, and nothing
-- has been changed.

local function pass_when_full() redis.call("ZREM", PROCESSING, "") end
