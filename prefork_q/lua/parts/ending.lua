-- ending: the functions by which a task reaches its next status, each written once. Their callers have
-- checked that the task may go there, and call write_sets at their end.

-- As in counters.
redis.call("ZCARD", DELAYED)
redis.call("ZCARD", DEAD)
redis.call("LLEN", RECENT)

-- The last 10,000 are kept. (Numbers that never change are texts here: Redis formats each anew.)
local LAST_RECENT = "9999"

local leaving, ended, died, delayed, put_back, put_on = {}, {}, {}, {}, {}, {}

-- Its lease ends with this call.
local function leave(id) leaving[#leaving + 1] = id end

-- Whoever waits looks by itself, so a user without a right to the channel loses time and nothing else.
local function tell(id, status, waited)
  if waited then redis.pcall("PUBLISH", root .. "ended:" .. id, status) end
end

-- One end for all that belongs to the task; `is_apart`: its payload has a key of its own. `forget_at` is a
-- time, ms, as text. (Redis keeps and replicates a time: given a number of ms it would make one for each key.)
local function expire(id, task, idem, is_apart, forget_at)
  redis.call("PEXPIREAT", task, forget_at)
  if is_apart then redis.call("PEXPIREAT", BODY .. id, forget_at) end
  if idem then redis.call("PEXPIREAT", IDEM .. idem, forget_at) end
end

-- Many tasks of one call ran equally long; formatting a time costs as much as a command.
local times = {}
local function time_before(ms)
  local time = times[ms]
  if not time then
    time = text(now_ms - ms)
    times[ms] = time
  end
  return time
end

local function to_succeeded(id, task, result, ran_ms, idem, waited, is_apart, forget_at)
  redis.call("HSET", task, "status", "succeeded", "result", result,
    "finished_at", now, "started_at", time_before(ran_ms))
  expire(id, task, idem, is_apart, forget_at)
  ended[#ended + 1] = id
  count("completed")
  tell(id, "succeeded", waited)
end

-- Without a lifetime for a ghost, see parts/ghosts.lua.
local function to_cancelled(id, task, idem, waited, forget_at)
  redis.call("HSET", task, "status", "cancelled", "finished_at", now)
  if forget_at then expire(id, task, idem, true, forget_at) end
  ended[#ended + 1] = id
  count("cancelled")
  tell(id, "cancelled", waited)
end

local function to_dead(id, task, err, waited)
  redis.call("HSET", task, "status", "dead", "error", err, "finished_at", now)
  died[#died + 1], died[#died + 2] = now, id
  count("dead")
  tell(id, "dead", waited)
end

local function to_delayed(id, task, delay_ms)
  local due = now_ms + delay_ms
  redis.call("HSET", task, "status", "delayed", "run_at", text(due))
  delayed[#delayed + 1], delayed[#delayed + 2] = due, id
end

-- Back to the head of its queue; `attempts` is what counts from now on. Should the record have lost the
-- queue, any is better than none. `waits_on`: it was claimed and never begun, so it waits as long as before.
local function to_pending(id, task, queue, attempts, waits_on)
  queue = queue or "default"
  redis.call("HSET", task, "status", "pending", "attempts", attempts)
  if not waits_on then redis.call("HSET", task, "ready_at", now) end
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
  if #leaving > 0 then redis.call("ZREM", PROCESSING, unpack(leaving)) end
  if #ended > 0 then
    redis.call("LPUSH", RECENT, unpack(ended))
    redis.call("LTRIM", RECENT, "0", LAST_RECENT)
  end
  if #died > 0 then redis.call("ZADD", DEAD, unpack(died)) end
  if #delayed > 0 then delay(delayed) end
  for _, queue in ipairs(put_on) do
    -- The oldest is to be the rightmost again, so the last goes in first.
    local list, reversed = put_back[queue], {}
    for i = #list, 1, -1 do reversed[#reversed + 1] = list[i] end
    push("RPUSH", queue, reversed)
    wake_unless_paused(queue)
  end
  leaving, ended, died, delayed, put_back, put_on = {}, {}, {}, {}, {}, {}
end
