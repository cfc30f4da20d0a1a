// Package heddle is what a Heddle task in Go is given, and how it ends. This file is yours: change it as you like.
//
//	func main() { heddle.Main(run, Params{}) }
//
//	func run(task *heddle.Task, params Params) (Output, error) { ... }
//
// The package log writes to the log of the attempt. An error that run returns fails the attempt, its text becomes the
// attempt's message, and the task's retry policy decides whether there is another attempt. A panic does the same.
package heddle

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"time"
)

// Task is one attempt at a task: who is running, and for what.
type Task struct {
	Run   string `json:"run"`
	Group string `json:"group"`
	Task  string `json:"task"`
	// From 1.
	Attempt int `json:"attempt"`
	// "manual", "schedule", "backfill", "upstream", "task" or "rerun".
	Trigger string `json:"trigger"`
	// What the run is about; time.Now is what the clock says.
	LogicalTime  time.Time `json:"logical_time"`
	DataInterval struct {
		Start time.Time `json:"start"`
		End   time.Time `json:"end"`
	} `json:"data_interval"`
	// When this attempt will be stopped, if ever.
	Deadline *time.Time `json:"deadline"`
	// Set in a mapped task.
	Item *Item `json:"item"`
	// The same for every attempt of this task run, and for no other.
	IdempotencyKey string `json:"idempotency_key"`
}

// Item is one of a mapped task's.
type Item struct {
	Item json.RawMessage `json:"item"`
	// From 0.
	Index int `json:"index"`
	// How many items the mapped task has.
	Count int `json:"count"`
}

// Main runs the task: params are read from standard input over the defaults, and members that P does not have are let
// through; the output is written to standard output as JSON.
func Main[P, O any](run func(*Task, P) (O, error), defaults P) {
	log.SetFlags(0)
	if err := attempt(run, defaults); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

func attempt[P, O any](run func(*Task, P) (O, error), params P) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			os.Stderr.Write(debug.Stack())
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	task := new(Task)
	if text := os.Getenv("HEDDLE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), task); err != nil {
			return fmt.Errorf("HEDDLE_CONTEXT: %w", err)
		}
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("params: %w", err)
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &params); err != nil {
			return fmt.Errorf("params: %w", err)
		}
	}
	output, err := run(task, params)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(output)
}
