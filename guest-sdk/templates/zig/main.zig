//! {{name}}: a task script for Heddle, as a WASI command. `heddle.zig` says what there is.

const std = @import("std");
const heddle = @import("heddle.zig");

/// What the task is given. A field without a default has to be there.
const Params = struct {
    /// Who is greeted.
    name: []const u8 = "world",
};

/// What it puts out, as JSON.
const Output = struct { greeting: []const u8 };

pub const main = heddle.main(run);

fn run(task: *heddle.Task, params: Params) !Output {
    if (params.name.len == 0) return task.fail("name is empty", .{});
    heddle.log("greeting {s}, attempt {d}", .{ params.name, task.context.attempt });
    return .{ .greeting = try std.fmt.allocPrint(task.allocator, "Hello, {s}!", .{params.name}) };
}
