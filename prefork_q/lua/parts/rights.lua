-- rights: a script runs with its caller's rights, and what it did before one turns out to be missing is not
-- rolled back. So who may not do everything is looked at before the first write: own_commands() are those of
-- this script. (Redis 6 cannot tell.)

local function may_do_all()
  local is_known, may_shut_down = pcall(redis.acl_check_cmd, "SHUTDOWN")
  return is_known and may_shut_down and redis.acl_check_cmd("SET", root, "")
end

if redis.acl_check_cmd and not may_do_all() then
  for _, command in ipairs(own_commands()) do
    if not redis.acl_check_cmd(command, root) then
      return redis.error_reply("NOPERM this user may not run " .. command .. " in this namespace; prefork-q "
        .. "check --acl prints the rights that are needed")
    end
  end
end
