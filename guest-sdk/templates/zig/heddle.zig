//! What a Heddle task in Zig 0.17 is given, and how it ends. This file is yours: change it as you like.
//!
//! ```zig
//! const heddle = @import("heddle.zig");
//! pub const main = heddle.main(run);
//! fn run(task: *heddle.Task, params: Params) !Output { ... }
//! ```
//!
//! `Params` and `Output` are whatever `std.json` reads and writes. An error that `run` returns fails the attempt, and the
//! task's retry policy decides whether there is another. A panic is a trap.

const std = @import("std");

/// One attempt at the task.
pub const Task = struct {
    /// Freed as a whole when the attempt ends: nothing has to be freed by hand.
    allocator: std.mem.Allocator,
    io: std.Io,
    context: Context,
    /// The run's params as they came, defaults and unknown members included.
    params_json: []const u8,

    /// An error with a message, which becomes that of the attempt: `return task.fail("{s} is no table", .{name});`
    pub fn fail(task: *Task, comptime format: []const u8, args: anytype) error{Failed} {
        _ = task;
        log(format, args);
        return error.Failed;
    }
};

/// Who is running, and for what. Times are RFC 3339, in UTC.
pub const Context = struct {
    run: []const u8 = "",
    group: []const u8 = "",
    task: []const u8 = "",
    /// From 1.
    attempt: u32 = 1,
    /// `manual`, `schedule`, `backfill`, `upstream`, `task` or `rerun`.
    trigger: []const u8 = "manual",
    logical_time: []const u8 = "",
    data_interval: Interval = .{},
    /// When this attempt will be stopped.
    deadline: ?[]const u8 = null,
    /// Set in a mapped task.
    item: ?Item = null,
    /// The same for every attempt of this task run, and for no other.
    idempotency_key: []const u8 = "",
};

pub const Interval = struct { start: []const u8 = "", end: []const u8 = "" };

pub const Item = struct { item: std.json.Value, index: u32, count: u32 };

/// Writes a line to the log of the attempt.
pub fn log(comptime format: []const u8, args: anytype) void {
    std.debug.print(format ++ "\n", args);
}

/// Makes a `main` of `fn (task: *Task, params: Params) !Output`: params are read from standard input, members that
/// `Params` does not have are let through, and the output is written to standard output as JSON.
pub fn main(comptime function: anytype) fn (std.process.Init) u8 {
    return struct {
        fn start(init: std.process.Init) u8 {
            attempt(init, function) catch |err| {
                // What failed by `Task.fail` has said so.
                if (err != error.Failed) log("{t}", .{err});
                return 1;
            };
            return 0;
        }
    }.start;
}

fn attempt(init: std.process.Init, comptime function: anytype) anyerror!void {
    const allocator = init.arena.allocator();
    var input = std.Io.File.stdin().readerStreaming(init.io, &.{});
    const text = try input.interface.allocRemaining(allocator, .unlimited);
    var given: Task = .{
        .allocator = allocator,
        .io = init.io,
        .context = try parse(Context, allocator, init.environ_map.get("HEDDLE_CONTEXT") orelse "{}"),
        .params_json = if (text.len == 0) "{}" else text,
    };
    const Params = @typeInfo(@TypeOf(function)).@"fn".param_types[1].?;
    const output = try function(&given, try parse(Params, allocator, given.params_json));
    var buffer: [4096]u8 = undefined;
    var out = std.Io.File.stdout().writerStreaming(init.io, &buffer);
    try std.json.Stringify.value(output, .{}, &out.interface);
    try out.interface.flush();
}

/// JSON as a value of the type; what does not fit is told with its place.
pub fn parse(comptime T: type, allocator: std.mem.Allocator, text: []const u8) !T {
    var scanner = std.json.Scanner.initCompleteInput(allocator, text);
    var place: std.json.Scanner.Diagnostics = .{};
    scanner.enableDiagnostics(&place);
    return std.json.parseFromTokenSourceLeaky(T, allocator, &scanner, .{ .ignore_unknown_fields = true }) catch |err| {
        log("{t} in line {d}, column {d}", .{ err, place.getLine(), place.getColumn() });
        return error.Failed;
    };
}
