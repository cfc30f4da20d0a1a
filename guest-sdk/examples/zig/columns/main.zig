//! Looks through a table in CSV before it is loaded: of each column, how many fields are empty, how many differ, and of
//! numbers the least, the greatest and the mean. Rows that are too short or too long fail the attempt.

const std = @import("std");
const heddle = @import("heddle.zig");

const Params = struct {
    csv: []const u8,
    /// Between fields: one character.
    separator: []const u8 = ",",
};

const Column = struct {
    name: []const u8,
    empty: u32 = 0,
    distinct: u32 = 0,
    /// Of a column whose fields are all numbers.
    numbers: ?Numbers = null,
};

const Numbers = struct { min: f64, max: f64, mean: f64 };

const Output = struct { rows: u32, columns: []Column };

pub const main = heddle.main(run);

fn run(task: *heddle.Task, params: Params) !Output {
    if (params.separator.len != 1) return task.fail("separator is not one character", .{});
    var reader: Reader = .{ .text = params.csv, .separator = params.separator[0], .allocator = task.allocator };
    var columns: std.ArrayList(Column) = .empty;
    for (try reader.row() orelse return task.fail("there is no header", .{})) |name| {
        try columns.append(task.allocator, .{ .name = name });
    }
    const seen = try task.allocator.alloc(std.StringHashMapUnmanaged(void), columns.items.len);
    const sums = try task.allocator.alloc(f64, columns.items.len);
    const numeric = try task.allocator.alloc(bool, columns.items.len);
    @memset(seen, .empty);
    @memset(sums, 0);
    @memset(numeric, true);

    var rows: u32 = 0;
    while (try reader.row()) |fields| {
        rows += 1;
        if (fields.len != columns.items.len) {
            return task.fail("row {d} has {d} fields, the header {d}", .{ rows, fields.len, columns.items.len });
        }
        for (fields, columns.items, 0..) |field, *column, i| {
            if (field.len == 0) {
                column.empty += 1;
                continue;
            }
            try seen[i].put(task.allocator, field, {});
            const number = std.fmt.parseFloat(f64, field) catch {
                numeric[i] = false;
                continue;
            };
            sums[i] += number;
            const known = column.numbers orelse Numbers{ .min = number, .max = number, .mean = 0 };
            column.numbers = .{ .min = @min(known.min, number), .max = @max(known.max, number), .mean = 0 };
        }
    }
    for (columns.items, 0..) |*column, i| {
        column.distinct = seen[i].count();
        if (!numeric[i]) column.numbers = null;
        if (column.numbers) |*numbers| numbers.mean = sums[i] / @as(f64, @floatFromInt(rows - column.empty));
    }
    heddle.log("{d} rows, {d} columns", .{ rows, columns.items.len });
    return .{ .rows = rows, .columns = columns.items };
}

/// CSV as RFC 4180 has it: fields in quotes may hold separators, line breaks and, doubled, quotes.
const Reader = struct {
    text: []const u8,
    separator: u8,
    allocator: std.mem.Allocator,
    at: usize = 0,

    /// The fields of the next row that is not empty.
    fn row(reader: *Reader) !?[][]const u8 {
        while (reader.at < reader.text.len and (reader.text[reader.at] == '\n' or reader.text[reader.at] == '\r')) {
            reader.at += 1;
        }
        if (reader.at == reader.text.len) return null;
        var fields: std.ArrayList([]const u8) = .empty;
        while (true) {
            try fields.append(reader.allocator, try reader.field());
            if (reader.at == reader.text.len) break;
            const end = reader.text[reader.at];
            reader.at += 1;
            if (end != reader.separator) break;
        }
        return fields.items;
    }

    fn field(reader: *Reader) ![]const u8 {
        if (reader.at == reader.text.len or reader.text[reader.at] != '"') {
            const ends = [_]u8{ reader.separator, '\r', '\n' };
            const rest = reader.text[reader.at..];
            const length = std.mem.findAny(u8, rest, &ends) orelse rest.len;
            reader.at += length;
            return rest[0..length];
        }
        reader.at += 1;
        var text: std.ArrayList(u8) = .empty;
        while (reader.at < reader.text.len) : (reader.at += 1) {
            if (reader.text[reader.at] == '"') {
                reader.at += 1;
                if (reader.at == reader.text.len or reader.text[reader.at] != '"') return text.items;
            }
            try text.append(reader.allocator, reader.text[reader.at]);
        }
        return error.QuoteWithoutEnd;
    }
};
