// {{name}}: a task script for Heddle, as a WASI command. heddle/heddle.go says what there is.
package main

import (
	"errors"
	"log"

	"{{crate}}/heddle"
)

// Params is what the task is given.
type Params struct {
	// Who is greeted.
	Name string `json:"name"`
}

// Output is what it puts out.
type Output struct {
	Greeting string `json:"greeting"`
}

func main() {
	heddle.Main(run, Params{Name: "world"})
}

func run(task *heddle.Task, params Params) (Output, error) {
	if params.Name == "" {
		return Output{}, errors.New("name is empty")
	}
	log.Printf("greeting %s, attempt %d", params.Name, task.Attempt)
	return Output{Greeting: "Hello, " + params.Name + "!"}, nil
}
