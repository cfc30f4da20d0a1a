// Simplifies a recorded route: leaves out points that lie within a tolerance of the line without them
// (Douglas and Peucker), so that 10,000 points of a GPS become the few hundred that a map shows.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HEDDLE_IMPLEMENTATION
#include "heddle.h"

enum { MAX_POINTS = 10000 };

static const double EARTH_RADIUS_M = 6371008.8;
static const double DEGREE = 0.017453292519943295;

typedef struct {
    double latitude, longitude;
    // On a plane, in metres from the first point: good for the extent of a trip.
    double x, y;
    bool kept;
} point;

static point points[MAX_POINTS];

static double distance_to_line(const point *p, const point *a, const point *b) {
    double dx = b->x - a->x, dy = b->y - a->y, length = dx * dx + dy * dy;
    double t = length == 0 ? 0 : ((p->x - a->x) * dx + (p->y - a->y) * dy) / length;
    t = fmin(1, fmax(0, t));
    return hypot(p->x - (a->x + t * dx), p->y - (a->y + t * dy));
}

// Marks what has to stay between two points that do. The farthest point splits the rest; the longer part waits on a
// stack of its own, because a spiral would need a recursion as deep as it has points.
static void simplify(size_t count, double tolerance) {
    static size_t waiting[2 * MAX_POINTS];
    size_t depth = 0, first = 0, last = count - 1;
    points[first].kept = points[last].kept = true;
    for (;;) {
        size_t farthest = first;
        double most = tolerance;
        for (size_t i = first + 1; i < last; i++) {
            double distance = distance_to_line(&points[i], &points[first], &points[last]);
            if (distance > most) most = distance, farthest = i;
        }
        if (farthest != first) {
            points[farthest].kept = true;
            waiting[depth++] = farthest;
            waiting[depth++] = last;
            last = farthest;
        } else if (depth > 0) {
            last = waiting[--depth];
            first = waiting[--depth];
        } else {
            return;
        }
    }
}

int main(void) {
    heddle_json params = heddle_params();
    double tolerance = heddle_number(params, "tolerance_m", 10);
    if (!(tolerance >= 0)) heddle_fail("tolerance_m is negative");
    size_t count = 0;
    for (heddle_json it = heddle_first(heddle_array(params, "points")); it.at; it = heddle_next(it)) {
        heddle_json latitude = heddle_first(it), longitude = latitude.at ? heddle_next(latitude) : latitude;
        if (!longitude.at) heddle_fail("point %zu is no [latitude, longitude]", count);
        if (count == MAX_POINTS) heddle_fail("more than %d points", MAX_POINTS);
        point *p = &points[count++];
        p->latitude = heddle_as_number(latitude);
        p->longitude = heddle_as_number(longitude);
        p->x = (p->longitude - points[0].longitude) * DEGREE * cos(points[0].latitude * DEGREE) * EARTH_RADIUS_M;
        p->y = (p->latitude - points[0].latitude) * DEGREE * EARTH_RADIUS_M;
    }
    if (count < 2) heddle_fail("a route has two points at least");
    simplify(count, tolerance);

    double length = 0;
    size_t kept = 0;
    const point *before = &points[0];
    printf("{\"points\": [");
    for (size_t i = 0; i < count; i++) {
        if (!points[i].kept) continue;
        length += hypot(points[i].x - before->x, points[i].y - before->y);
        before = &points[i];
        printf(kept++ == 0 ? "[" : ", [");
        heddle_print_number(points[i].latitude);
        printf(", ");
        heddle_print_number(points[i].longitude);
        printf("]");
    }
    printf("], \"length_m\": %.0f}\n", length);
    heddle_log("kept %zu of %zu points", kept, count);
}
