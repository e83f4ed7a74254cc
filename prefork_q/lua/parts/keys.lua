-- keys: the names of the keys, spelled as in keys.py.

local root = KEYS[1]
local PROCESSING, DELAYED, DEAD = root .. "processing", root .. "delayed", root .. "dead"
local TOTALS, RECENT, CORRUPT = root .. "totals", root .. "recent", root .. "corrupt"
local GHOSTS, PAUSED, QUEUES = root .. "ghosts", root .. "paused", root .. "queues"
local TASK, BODY, IDEM = root .. "task:", root .. "body:", root .. "idem:"
local PENDING, WAKE, MOVER = root .. "pending:", root .. "wake:", root .. "mover"
local CLAIM, CLAIMS = root .. "claim:", root .. "claims"
local TOKEN, REAPER, CANCELS = root .. "token", root .. "reaper", root .. "cancels"
