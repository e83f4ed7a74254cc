-- register: say that a node lives and what it runs; drop nodes that have long been silent. A queue that it works
-- on is known from now on: it can be paused before its first task comes.
--
-- KEYS[1]  root
-- ARGV[1]  node
-- ARGV[2]  info  JSON text
-- ARGV[3]  silence_ms  after which a node is dropped
-- ARGV[4]  layout  the version of the layout that the node writes
-- ARGV     then the queues
-- returns  the version of the layout that is stored; if it is another, nothing is written
-- uses     keys rights clock full

local nodes = root .. "nodes"
pass_when_full()
redis.call("SETNX", root .. "layout", ARGV[4])
local layout = redis.call("GET", root .. "layout")
if layout ~= ARGV[4] then return layout end
for i = 5, #ARGV do redis.pcall("HSETNX", QUEUES, ARGV[i], 0) end
redis.call("HSET", nodes, ARGV[1], now .. " " .. ARGV[2])
local said = redis.call("HGETALL", nodes)
for i = 1, #said, 2 do
  local at = tonumber(string.match(said[i + 1], "^%d+")) or 0
  -- Before or, of a clock that was set back, behind.
  if math.abs(now_ms - at) > tonumber(ARGV[3]) then redis.call("HDEL", nodes, said[i]) end
end
return layout
