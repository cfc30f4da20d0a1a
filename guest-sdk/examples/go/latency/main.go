// Latency reads lines of a web server's access log and tells of each path how many requests it had, how many failed, and
// how long they took: the median, the 95th percentile and the longest. With a limit for the 95th percentile, paths beyond
// it fail the attempt.
package main

import (
	"cmp"
	"fmt"
	"log"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"{{crate}}/heddle"
)

// Params are lines in nginx's format "combined", with $request_time in seconds behind it.
type Params struct {
	Lines string `json:"lines"`
	// What the 95th percentile may be at most, as "250ms"; none if empty.
	Limit string `json:"limit"`
}

// Path is what is told of one path.
type Path struct {
	Path     string  `json:"path"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	Max      float64 `json:"max_ms"`
}

// Output has the path with the most requests first.
type Output struct {
	Paths []Path `json:"paths"`
	// Lines that are none of this format.
	Unread int `json:"unread"`
}

var line = regexp.MustCompile(`^\S+ \S+ \S+ \[[^\]]+\] "[A-Z]+ (\S+) [^"]*" (\d{3}) .* (\d+\.\d+)$`)

func main() {
	heddle.Main(run, Params{})
}

func run(task *heddle.Task, params Params) (Output, error) {
	times := map[string][]time.Duration{}
	failed := map[string]int{}
	output := Output{Paths: []Path{}}
	for text := range strings.Lines(params.Lines) {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		found := line.FindStringSubmatch(text)
		if found == nil {
			output.Unread++
			continue
		}
		target, err := url.ParseRequestURI(found[1])
		if err != nil {
			output.Unread++
			continue
		}
		took, err := strconv.ParseFloat(found[3], 64)
		if err != nil {
			return Output{}, err
		}
		times[target.Path] = append(times[target.Path], time.Duration(took*float64(time.Second)))
		if found[2] >= "500" {
			failed[target.Path]++
		}
	}
	for path, took := range times {
		slices.Sort(took)
		output.Paths = append(output.Paths, Path{
			Path:     path,
			Requests: len(took),
			Failed:   failed[path],
			P50:      milliseconds(percentile(took, 50)),
			P95:      milliseconds(percentile(took, 95)),
			Max:      milliseconds(took[len(took)-1]),
		})
	}
	slices.SortFunc(output.Paths, func(a, b Path) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Path, b.Path))
	})
	log.Printf("%d paths, %d lines not read", len(output.Paths), output.Unread)
	if params.Limit == "" {
		return output, nil
	}
	limit, err := time.ParseDuration(params.Limit)
	if err != nil {
		return Output{}, fmt.Errorf("limit: %w", err)
	}
	for _, path := range output.Paths {
		if path.P95 > milliseconds(limit) {
			return Output{}, fmt.Errorf("%s: 95%% of %d requests within %v ms, wanted %v", path.Path, path.Requests, path.P95, limit)
		}
	}
	return output, nil
}

// The least time that so many percent did not exceed; of sorted times, at least one.
func percentile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}

func milliseconds(took time.Duration) float64 {
	return float64(took.Microseconds()) / 1000
}
