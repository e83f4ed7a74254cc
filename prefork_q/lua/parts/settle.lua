-- settle: what a worker says of the tasks that it holds, each guarded alone.

-- By verb and the status that the task has left for: what the worker is answered, now and when it says
-- the same again. It is told what else than it said has become of the task.
local WORDS = {
  complete = { succeeded = "ok" },
  fail = { delayed = "ok", pending = "ok", dead = "ok", cancelled = "cancelled" },
  release = { pending = "ok", delayed = "ok", dead = "dead", cancelled = "cancelled" },
}

local OFFERS = 6

-- Returns the status that the task has now, as does release_held.
local function fail_held(id, task, held, err, delay_ms, forget_at)
  count("failed")
  -- Somebody has known its type.
  if held[8] then redis.call("HDEL", task, "unknown_at") end
  if held[5] then
    redis.call("HSET", task, "error", err)
    to_cancelled(id, task, held[3], held[4], forget_at)
    return "cancelled"
  elseif delay_ms == "" then
    to_dead(id, task, err, held[4])
    return "dead"
  end
  redis.call("HSET", task, "error", err)
  to_delayed(id, task, delay_ms)
  count("retried")
  return "delayed"
end

-- Since when nobody knows its type. What it waited for another offer (in a paused queue, in a long one, while
-- nothing ran, in a step of the clock) counts for a part of the limit only: it is not to die of few offers.
local function unknown_since(task, since, unknown_limit_ms)
  if not since then return now_ms end
  local due = tonumber(redis.call("HGET", task, "run_at") or nil) or now_ms
  return since + math.max(0, now_ms - due - unknown_limit_ms / OFFERS)
end

local function release_held(id, task, held, err, delay_ms, forget_at, unknown_limit_ms)
  count("released")
  local attempts = math.max(0, (tonumber(held[7]) or 0) - 1)
  if held[5] then
    redis.call("HSET", task, "attempts", attempts)
    to_cancelled(id, task, held[3], held[4], forget_at)
    return "cancelled"
  elseif delay_ms == "" then
    to_pending(id, task, held[6], attempts, true)
    return "pending"
  elseif err == "" then
    -- Put off: the worker knows its type, and has no room for it.
    redis.call("HSET", task, "attempts", attempts)
    if held[8] then redis.call("HDEL", task, "unknown_at") end
    to_delayed(id, task, delay_ms)
    return "delayed"
  end
  -- Of a type that the worker does not know: others may, or will after an upgrade.
  local since = unknown_since(task, tonumber(held[8]), unknown_limit_ms)
  redis.call("HSET", task, "attempts", attempts, "unknown_at", text(since))
  if now_ms - since > unknown_limit_ms then
    to_dead(id, task, err, held[4])
    return "dead"
  end
  to_delayed(id, task, delay_ms)
  return "delayed"
end

-- `verb` is complete, fail or release; `said` is a result, an error or the reason of a release.
-- Returns a word of WORDS, the same for the same call again, or stale: nothing was written.
local function settle(verb, id, token, ran_ms, said, delay_ms, forget_at, unknown_limit_ms)
  local task = TASK .. id
  local held
  if verb == "complete" then
    held = redis.pcall("HMGET", task, "status", "token", "extra")
  else
    held = redis.pcall("HMGET", task, "status", "token", "idem", "waited",
      "cancel", "queue", "attempts", "unknown_at")
  end
  if held[2] ~= token then return "stale" end
  if held[1] ~= "processing" then return WORDS[verb][held[1]] or "stale" end

  leave(id)
  if verb == "complete" then
    -- Rare, and each field that is not there costs a walk through all that are.
    local extra = held[3] and redis.call("HMGET", task, "idem", "waited", "apart") or {}
    to_succeeded(id, task, said, ran_ms, extra[1], extra[2], extra[3], forget_at)
    return "ok"
  elseif verb == "fail" then
    return WORDS.fail[fail_held(id, task, held, said, delay_ms, forget_at)]
  end
  return WORDS.release[release_held(id, task, held, said, delay_ms, forget_at, unknown_limit_ms)]
end
