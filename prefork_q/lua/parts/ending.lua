-- ending: the functions by which a task reaches its next status, each written once. Their callers have
-- checked that the task may go there, and have taken it off the set that it was on: that ZREM or LTRIM
-- is also the write that a full server lets pass, after which it lets the rest of the script pass.

local RECENT_LIMIT = 10000

local ended, put_back, put_on, delayed, died = {}, {}, {}, {}, {}

local function tell(id, task, status, waited)
  if waited then
    redis.call("PUBLISH", root .. "ended:" .. id, status)
  end
end

-- One lifetime for all that belongs to the task.
local function expire(id, task, idem, retention_ms)
  redis.call("PEXPIRE", task, retention_ms)
  redis.call("PEXPIRE", BODY .. id, retention_ms)
  if idem then redis.call("PEXPIRE", IDEM .. idem, retention_ms) end
end

local function to_succeeded(id, result, ran_ms, idem, waited, retention_ms)
  local task = TASK .. id
  redis.call("HSET", task, "status", "succeeded", "result", result,
    "finished_at", now_ms, "started_at", now_ms - ran_ms)
  expire(id, task, idem, retention_ms)
  ended[#ended + 1], ended[#ended + 2] = now_ms, id
  count("completed")
  tell(id, task, "succeeded", waited)
end

local function to_cancelled(id, idem, waited, retention_ms)
  local task = TASK .. id
  redis.call("HSET", task, "status", "cancelled", "finished_at", now_ms)
  expire(id, task, idem, retention_ms)
  ended[#ended + 1], ended[#ended + 2] = now_ms, id
  count("cancelled")
  tell(id, task, "cancelled", waited)
end

local function to_dead(id, err, waited)
  local task = TASK .. id
  redis.call("HSET", task, "status", "dead", "error", err, "finished_at", now_ms)
  died[#died + 1], died[#died + 2] = now_ms, id
  count("dead")
  tell(id, task, "dead", waited)
end

local function to_delayed(id, delay_ms)
  local due = now_ms + delay_ms
  redis.call("HSET", TASK .. id, "status", "delayed", "run_at", due)
  delayed[#delayed + 1], delayed[#delayed + 2] = due, id
end

-- Back to the head of its queue; `attempts` is what counts from now on.
local function to_pending(id, queue, attempts)
  redis.call("HSET", TASK .. id, "status", "pending", "attempts", attempts, "ready_at", now_ms)
  local list = put_back[queue]
  if not list then
    list = {}
    put_back[queue] = list
    put_on[#put_on + 1] = queue
  end
  list[#list + 1] = id
end

-- Writes what the functions above have gathered, one command a set.
local function write_sets()
  if #ended > 0 then
    redis.call("ZADD", RECENT, unpack(ended))
    redis.call("ZREMRANGEBYRANK", RECENT, 0, -RECENT_LIMIT - 1)
  end
  if #died > 0 then redis.call("ZADD", DEAD, unpack(died)) end
  if #delayed > 0 then
    local first, earliest = first_due(), delayed[1]
    for i = 3, #delayed, 2 do earliest = math.min(earliest, delayed[i]) end
    redis.call("ZADD", DELAYED, unpack(delayed))
    wake_mover(earliest, first)
  end
  for _, queue in ipairs(put_on) do
    -- The oldest is to be the rightmost again, so the last goes in first.
    local list, reversed = put_back[queue], {}
    for i = #list, 1, -1 do reversed[#reversed + 1] = list[i] end
    redis.call("RPUSH", PENDING .. queue, unpack(reversed))
    if redis.call("SISMEMBER", PAUSED, queue) == 0 then wake(queue) end
  end
end
