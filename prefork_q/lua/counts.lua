-- counts: all sums of the namespace in one look. Changes nothing.
--
-- KEYS[1]  root
-- ARGV[1]  window_s  seconds that the rates cover, the current one included
-- ARGV[2]  peek      entries at the head of a pending list that are looked at for its oldest task
-- returns  {now_ms, {processing, delayed, dead}, queues, totals, {completed, failed}}: an entry of
--          queues is {name, pending, 1 if paused, submitted, age_ms of its oldest task or -1};
--          totals is field, value, ...; completed and failed are those of the window
-- uses     keys clock

local window_s, peek = tonumber(ARGV[1]), tonumber(ARGV[2])

local function number(value)
  return type(value) == "number" and value or tonumber(type(value) == "string" and value or nil) or 0
end

local function fields_of(key)
  local flat, map = redis.pcall("HGETALL", key), {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end

-- What waits longest stands at the right end, but what was put back stands there too, so a few are
-- looked at; ghosts among them are as many more.
local function oldest_age(queue, ghosts)
  local ids = redis.pcall("LRANGE", PENDING .. queue, -math.min(peek, ghosts + 10), -1)
  local since
  for _, id in ipairs(ids) do
    local task = redis.pcall("HMGET", TASK .. id, "status", "ready_at", "created_at")
    if task[1] == "pending" then
      local at = tonumber(task[2] or task[3] or nil)
      if at and (not since or at < since) then since = at end
    end
  end
  return since and math.max(0, now_ms - since) or -1
end

local ghosts, queues = fields_of(GHOSTS), {}
for queue, submitted in pairs(fields_of(QUEUES)) do
  local hidden = number(ghosts[queue])
  local waiting = math.max(0, number(redis.pcall("LLEN", PENDING .. queue)) - hidden)
  queues[#queues + 1] = {
    queue,
    waiting,
    redis.call("SISMEMBER", PAUSED, queue),
    number(submitted),
    waiting > 0 and oldest_age(queue, hidden) or -1,
  }
end

local completed, failed = 0, 0
for second = clock[1] - window_s + 1, clock[1] do
  local rate = redis.call("HMGET", root .. "rate:" .. string.format("%.0f", second), "completed", "failed")
  completed, failed = completed + number(rate[1]), failed + number(rate[2])
end

return {
  now_ms,
  {
    number(redis.pcall("ZCARD", PROCESSING)),
    number(redis.pcall("ZCARD", DELAYED)),
    number(redis.pcall("ZCARD", DEAD)),
  },
  queues,
  redis.call("HGETALL", TOTALS),
  { completed, failed },
}
