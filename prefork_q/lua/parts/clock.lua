-- clock: Redis's own time, read once a call. Clocks of clients are never compared with it.

local clock = redis.call("TIME")
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)

-- A number as text: Lua's own conversion turns large ones into 1.76e+15, and Redis would format a number
-- that is written for many tasks once for each.
local function text(number) return string.format("%.0f", number) end

local now = text(now_ms)
