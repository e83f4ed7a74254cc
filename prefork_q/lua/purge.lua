-- purge: delete pending tasks of a queue, the newest first.
--
-- KEYS[1]  root
-- ARGV[1]  queue
-- ARGV[2]  limit  how many at most in this call
-- ARGV[3]  retention_ms  lifetime of what is found cancelled
-- returns  {left the list, deleted}; fewer than the limit left the list: the queue is empty
-- uses     keys rights clock full counters lists delays ending ghosts removal

local queue, limit, forget_at = ARGV[1], tonumber(ARGV[2]), text(now_ms + ARGV[3])
local ids = redis.call("LRANGE", PENDING .. queue, 0, limit - 1)
local deleted = 0

if #ids == 0 then return { 0, 0 } end
pass_when_full()
redis.call("LTRIM", PENDING .. queue, #ids, -1)
for _, id in ipairs(ids) do
  local fields = redis.pcall("HMGET", TASK .. id, "status", "idem")
  local status = fields[1]
  if status == "cancelled" then
    drop_ghost(id, queue, forget_at)
  elseif status == "pending" or not status then
    remove(id, fields[2])
    count("removed")
    deleted = deleted + 1
  else
    count("strays")
  end
end
write_counts()
return { #ids, deleted }
