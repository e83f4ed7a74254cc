-- purge: delete pending tasks of a queue, the newest first.
--
-- KEYS[1]  root
-- ARGV[1]  queue
-- ARGV[2]  limit  how many at most in this call
-- returns  {left the list, deleted}; fewer than the limit left the list: the queue is empty
-- uses     keys clock counters

local queue, limit = ARGV[1], tonumber(ARGV[2])
local ids = redis.call("LRANGE", PENDING .. queue, 0, limit - 1)
local tasks = {}
for i, id in ipairs(ids) do tasks[i] = redis.pcall("HMGET", TASK .. id, "status", "idem") end

if #ids == 0 then return { 0, 0 } end
redis.call("LTRIM", PENDING .. queue, #ids, -1)
local deleted = 0
for i, id in ipairs(ids) do
  local fields = tasks[i]
  if fields.err then
    count("corrupt")
    count("removed")
  elseif fields[1] == "cancelled" then
    redis.call("UNLINK", TASK .. id)
    redis.call("HINCRBY", GHOSTS, queue, -1)
    if fields[2] then redis.call("UNLINK", IDEM .. fields[2]) end
  elseif fields[1] == "pending" or not fields[1] then
    redis.call("UNLINK", TASK .. id, BODY .. id)
    if fields[2] then redis.call("UNLINK", IDEM .. fields[2]) end
    count("removed")
    deleted = deleted + 1
  end
end
write_counts()
return { #ids, deleted }
