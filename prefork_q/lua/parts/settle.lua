-- settle: what a worker says of the tasks that it holds. Entries are
-- {verb, id, token, ran_ms, text, delay_ms}; text is a result, an error or the reason of a release.
-- All guards come before the first write. Words: ok (also for the same call again), stale.

local LEFT_BY = {
  complete = { succeeded = true },
  fail = { delayed = true, pending = true, dead = true, cancelled = true },
  release = { pending = true, delayed = true, dead = true, cancelled = true },
}

local function settle(entries, retention_ms, unknown_limit_ms)
  local words, accepted, leaving, seen = {}, {}, {}, {}
  for i, entry in ipairs(entries) do
    local verb, id, token = entry[1], entry[2], entry[3]
    local held
    if verb == "complete" then
      held = redis.pcall("HMGET", TASK .. id, "status", "token", "idem", "waited")
    else
      held = redis.pcall("HMGET", TASK .. id, "status", "token", "idem", "waited",
        "cancel", "queue", "attempts", "unknown_at")
    end
    if held.err or held[2] ~= token then
      words[i] = "stale"
      count("stale")
    elseif held[1] == "processing" and not seen[id] then
      words[i] = "ok"
      seen[id] = true
      entry.held = held
      accepted[#accepted + 1] = entry
      leaving[#leaving + 1] = id
    elseif seen[id] or LEFT_BY[verb][held[1]] then
      words[i] = "ok"
    else
      words[i] = "stale"
      count("stale")
    end
  end

  if #leaving > 0 then redis.call("ZREM", PROCESSING, unpack(leaving)) end
  for _, entry in ipairs(accepted) do
    local verb, id, held = entry[1], entry[2], entry.held
    local idem, waited, cancel = held[3], held[4], held[5]
    if verb == "complete" then
      to_succeeded(id, entry[5], entry[4], idem, waited, retention_ms)
    elseif verb == "fail" then
      count("failed")
      if entry[6] == "" then
        to_dead(id, entry[5], waited)
      elseif cancel then
        redis.call("HSET", TASK .. id, "error", entry[5])
        to_cancelled(id, idem, waited, retention_ms)
      else
        redis.call("HSET", TASK .. id, "error", entry[5])
        to_delayed(id, tonumber(entry[6]))
        count("retried")
      end
    else
      local attempts = math.max(0, (tonumber(held[7]) or 0) - 1)
      count("released")
      if cancel then
        redis.call("HSET", TASK .. id, "attempts", attempts)
        to_cancelled(id, idem, waited, retention_ms)
      elseif entry[6] == "" then
        to_pending(id, held[6], attempts)
      else
        -- Of a type that the worker does not know: others may, or will after an upgrade.
        local since = tonumber(held[8]) or now_ms
        redis.call("HSET", TASK .. id, "attempts", attempts, "unknown_at", since)
        if now_ms - since > unknown_limit_ms then
          to_dead(id, entry[5], waited)
        else
          to_delayed(id, tonumber(entry[6]))
        end
      end
    end
  end
  if #accepted == 0 and counts.stale then
    -- A full server lets this pass, and with it the counter that follows.
    redis.call("PERSIST", TOTALS)
  end
  return words
end
